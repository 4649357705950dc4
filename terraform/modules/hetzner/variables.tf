variable "deployment" {
  description = "Name of the fleet; see the render module."
  type        = string
}

variable "location" {
  description = "Where the gateway, its volume and its address are: fsn1, nbg1, hel1, ash, hil or sin."
  type        = string
  default     = "fsn1"

  validation {
    condition     = can(regex("^[a-z]{3}[0-9]?$", var.location))
    error_message = "location must be the name of a location, such as fsn1; data centres (fsn1-dc14) no longer exist."
  }
}

variable "network_zone" {
  description = "Zone of the private network; it must hold every location of the pools."
  type        = string
  default     = "eu-central"

  validation {
    condition     = lookup(local.zones, var.location, var.network_zone) == var.network_zone
    error_message = "location ${var.location} is not in network zone ${var.network_zone}."
  }
}

variable "network_cidr" {
  description = "Range of the private network."
  type        = string
  default     = "10.20.0.0/16"

  validation {
    condition     = can(regex("^(10|172\\.(1[6-9]|2[0-9]|3[01])|192\\.168)\\.", var.network_cidr)) && can(cidrsubnet(var.network_cidr, 0, 0)) && try(tonumber(split("/", var.network_cidr)[1]), 32) <= 24
    error_message = "network_cidr must be a private IPv4 network of at least 256 addresses."
  }
}

variable "subnet_cidr" {
  description = "Range of the one subnet, for the gateway and all workers. Each worker takes one address."
  type        = string
  default     = "10.20.0.0/20"

  validation {
    condition = (
      try(tonumber(split("/", var.subnet_cidr)[1]), 32) <= 28
      && try(tonumber(split("/", var.subnet_cidr)[1]) >= tonumber(split("/", var.network_cidr)[1]), false)
      # Two networks overlap, and the smaller lies in the larger, when both begin alike over the larger one's length.
      && try(cidrhost("${cidrhost(var.subnet_cidr, 0)}/${split("/", var.network_cidr)[1]}", 0) == cidrhost(var.network_cidr, 0), false)
    )
    error_message = "subnet_cidr must lie inside network_cidr and have room for at least 16 addresses."
  }
}

variable "ssh_public_key" {
  description = "Public key that may log in as root on the gateway and on workers. Its private part is used by the sweep at destroy."
  type        = string

  validation {
    condition     = can(regex("^(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp256|sk-ssh-ed25519@openssh.com) [A-Za-z0-9+/=]+( .*)?$", trimspace(var.ssh_public_key)))
    error_message = "ssh_public_key must be one line in OpenSSH's format, such as the content of id_ed25519.pub."
  }
}

variable "admin_cidrs" {
  description = "Networks from which the gateway accepts SSH; empty closes it, and the sweep at destroy then needs another route."
  type        = list(string)

  validation {
    condition     = alltrue([for cidr in var.admin_cidrs : can(cidrsubnet(cidr, 0, 0))])
    error_message = "admin_cidrs must be networks such as 203.0.113.7/32."
  }
}

variable "client_cidrs" {
  description = "Networks from which clients reach the gateway's HTTPS port."
  type        = list(string)
  default     = ["0.0.0.0/0", "::/0"]
}

variable "gateway_server_type" {
  description = "Server type of the gateway. Which types are sold changes: look with `hcloud server-type list`."
  type        = string
  default     = "cx33"
}

variable "gateway_image" {
  description = "System image of the gateway; the install script is written for Debian 12 and 13."
  type        = string
  default     = "debian-12"
}

variable "state_volume_gb" {
  description = "Size of the volume with the databases and tokens, in GB."
  type        = number
  default     = 20

  validation {
    condition     = var.state_volume_gb >= 10 && var.state_volume_gb <= 10240 && floor(var.state_volume_gb) == var.state_volume_gb
    error_message = "state_volume_gb must be a whole number from 10 to 10240."
  }
}

variable "protect" {
  description = "Protects gateway, volume, address and network against deletion. Before a destroy it has to be applied as false once."
  type        = bool
  default     = true
}

variable "labels" {
  description = "More labels for everything that Terraform creates; see the render module."
  type        = map(string)
  default     = {}
}

variable "tls" {
  description = "How clients get TLS; see the render module. internal and sslip need no DNS zone."
  type = object({
    mode   = string
    domain = optional(string)
    email  = optional(string)
  })
  default = { mode = "internal" }

  validation {
    condition     = var.tls.mode != "none"
    error_message = "On a machine with a public address tokens must not travel unencrypted: tls.mode must be internal, sslip or domain."
  }
}

variable "wheel_url" {
  description = "Where the gateway gets the sandbox-fleet wheel; see the render module."
  type        = string
}

variable "wheel_sha256" {
  description = "SHA-256 of that wheel, in hex."
  type        = string
}

variable "pools" {
  description = "The autoscaler's [[pools]], as in its settings file; provider is hetzner by default."
  type        = any

  validation {
    # A server cannot join a network of another zone.
    condition = alltrue(flatten([
      for pool in var.pools : [
        for offer in try(pool.offers, []) : lookup(local.zones, try(offer.location, ""), var.network_zone) == var.network_zone
      ] if try(pool.provider, "hetzner") == "hetzner"
    ]))
    error_message = "An offer of a pool is in another network zone than ${var.network_zone}, and its workers could not join the network."
  }
}

variable "worker_public_net" {
  description = "Whether workers have public addresses: ipv4 (billed apart) and ipv6. With neither they reach the internet through the gateway."
  type = object({
    ipv4 = optional(bool, false)
    ipv6 = optional(bool, false)
  })
  default = {}
}

variable "hetzner_settings" {
  description = "More keys of the autoscaler's table [providers.hetzner], such as types, locations or image; those that this module sets are refused."
  type        = any
  default     = {}

  validation {
    condition = can(keys(var.hetzner_settings)) && length(setintersection(
      keys(var.hetzner_settings), ["token_file", "token_env", "token", "ssh_keys", "networks", "firewalls", "ipv4", "ipv6", "reach"],
    )) == 0
    error_message = "hetzner_settings must be a map without token_file, token_env, token, ssh_keys, networks, firewalls, ipv4, ipv6 and reach."
  }
}

variable "gateway_settings" {
  description = "More keys of the gateway's settings file; see the render module."
  type        = any
  default     = {}
}

variable "autoscaler_settings" {
  description = "More keys of the autoscaler's settings file; see the render module."
  type        = any
  default     = {}
}

variable "object_storage" {
  description = "S3-compatible bucket for daily copies of the databases; see the render module. The hcloud provider has no resource for buckets."
  type = object({
    endpoint = string
    region   = string
    bucket   = string
    prefix   = optional(string, "backup")
  })
  default = null
}
