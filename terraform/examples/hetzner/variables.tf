variable "deployment" {
  description = "Name of the fleet."
  type        = string
  default     = "fleet"
}

variable "ssh_public_key" {
  description = "Public key of the operator."
  type        = string
}

variable "admin_cidrs" {
  description = "Networks from which the operator comes, such as [\"203.0.113.7/32\"]."
  type        = list(string)
}

variable "wheel_url" {
  description = "Where the gateway gets the sandbox-fleet wheel."
  type        = string
}

variable "wheel_sha256" {
  description = "SHA-256 of that wheel, in hex."
  type        = string
}

variable "max_hourly" {
  description = "Euro an hour, net, that all workers together may cost at most."
  type        = string
  default     = "1.50"
}

variable "max_monthly" {
  description = "Euro a calendar month, net, that all workers together may cost at most."
  type        = string
  default     = "300"
}

variable "protect" {
  description = "Set to false, and apply, before a destroy."
  type        = bool
  default     = true
}

variable "object_storage" {
  description = "Bucket for daily copies of the databases; null for none."
  type = object({
    endpoint = string
    region   = string
    bucket   = string
  })
  default = null
}
