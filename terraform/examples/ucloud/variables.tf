variable "deployment" {
  description = "Name of the fleet."
  type        = string
  default     = "fleet"
}

variable "base_url" {
  description = "URL of UCloud."
  type        = string
  default     = "https://cloud.sdu.dk"
}

variable "api_token_file" {
  description = "File on this machine with an API token of the project, with which the gateway's machine is ordered."
  type        = string
}

variable "product" {
  description = "Machine of the gateway, as UCloud names its product, such as cpu-amd-zen5-4-vcpu."
  type        = string
}

variable "image" {
  description = "Virtual machine application and its version. The install script is written for Debian and its relatives."
  type        = string
  default     = "vm-ubuntu/24.04"
}

variable "generation" {
  description = "Count it up for a new machine after the old one has ended."
  type        = number
  default     = 1
}

variable "disk_gb" {
  description = "Disk of the gateway's machine, in GiB. State lies on it and ends with the machine."
  type        = number
  default     = 50
}

variable "gateway_folder" {
  description = "Drive folder with build/init.sh as init.sh, for the gateway; its name must be new for each content."
  type        = string
}

variable "worker_folder" {
  description = "Drive folder with the nodes' init script; its name must be new for each content."
  type        = string
}

variable "private_network" {
  description = "Id of the private network that gateway and nodes join."
  type        = string
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
  description = "Euro an hour that all nodes together may cost at most; null for no cap. With a cap, products without a known price are never ordered."
  type        = string
  default     = null
}

variable "max_monthly" {
  description = "Euro a calendar month that all nodes together may cost at most; null for no cap."
  type        = string
  default     = null
}

variable "pools" {
  description = "The autoscaler's [[pools]]; provider is ucloud."
  type        = any
  default = [
    { name = "cpu", provider = "ucloud", max = 4, image = "vm-ubuntu/24.04", offers = [{ type = "cpu-amd-zen5-32-vcpu", location = "ucloud" }] },
  ]
}
