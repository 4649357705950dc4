variable "deployment" {
  description = "Name of the fleet. Part of every name, and the label by which the autoscaler recognises its own instances."
  type        = string

  validation {
    # The autoscaler's own rule (autoscaler/core/naming.py): two such names and an operation id fit into 63 characters.
    condition     = can(regex("^[a-z]([a-z0-9-]{0,22}[a-z0-9])?$", var.deployment))
    error_message = "deployment must be 1 to 24 of a-z, 0-9 and -, begin with a letter and end with a letter or digit."
  }
}

variable "cloud" {
  description = "Where the gateway's machine runs: hetzner or ucloud. Decides which packages are installed for the autoscaler."
  type        = string

  validation {
    condition     = contains(["hetzner", "ucloud"], var.cloud)
    error_message = "cloud must be hetzner or ucloud."
  }
}

variable "labels" {
  description = "More labels for everything that Terraform creates. They cannot replace the fleet's own."
  type        = map(string)
  default     = {}

  validation {
    condition = alltrue([
      for key, value in var.labels :
      can(regex("^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$", key))
      && can(regex("^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$", value))
    ])
    error_message = "A label's name and value are at most 63 of letters, digits and -_. with a letter or digit at both ends; a prefix is a DNS name."
  }

  validation {
    condition     = alltrue([for key, _ in var.labels : !startswith(key, "sandbox-fleet/") && !startswith(key, "hetzner.cloud/")])
    error_message = "The prefixes sandbox-fleet/ and hetzner.cloud/ are taken."
  }
}

variable "wheel_url" {
  description = "Source of the sandbox-fleet wheel for the gateway's machine: an https URL, or a file:// URL of the machine itself."
  type        = string

  validation {
    condition     = can(regex("^(https://[^\\s/'\"]+|file://)/[^\\s'\"#?]+\\.whl$", var.wheel_url))
    error_message = "wheel_url must be an https:// or file:// URL that ends in .whl."
  }
}

variable "wheel_sha256" {
  description = "SHA-256 of that wheel, in hex. pip refuses a file with another digest."
  type        = string

  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.wheel_sha256))
    error_message = "wheel_sha256 must be 64 hexadecimal digits in lower case."
  }
}

variable "node_pythons" {
  description = "Pythons of the nodes' images, for which the gateway keeps packages: 3.11 is Debian 12's, 3.12 Ubuntu 24.04's, 3.13 Debian 13's."
  type        = list(string)
  default     = ["3.11", "3.12", "3.13"]

  validation {
    condition     = length(var.node_pythons) > 0 && alltrue([for version in var.node_pythons : can(regex("^3\\.[0-9]{2}$", version))])
    error_message = "node_pythons must be a list such as [\"3.11\"]."
  }
}

variable "listen_host" {
  description = "Address on which the gateway listens: a private one that nodes reach. Use 0.0.0.0 only where the machine has no public route."
  type        = string

  validation {
    condition     = can(cidrhost("${var.listen_host}/32", 0))
    error_message = "listen_host must be an IPv4 address."
  }
}

variable "listen_port" {
  description = "Port on which the gateway listens for nodes, the autoscaler and the TLS proxy."
  type        = number
  default     = 8090

  validation {
    condition     = var.listen_port >= 1024 && var.listen_port <= 65535 && floor(var.listen_port) == var.listen_port
    error_message = "listen_port must be a whole number from 1024 to 65535: the gateway does not run as root."
  }
}

variable "node_gateway_url" {
  description = "Where nodes reach the gateway; null is http on listen_host and listen_port."
  type        = string
  default     = null

  validation {
    condition     = var.node_gateway_url == null || can(regex("^https?://[^/\\s]+$", var.node_gateway_url))
    error_message = "node_gateway_url must be http:// or https:// with a host and nothing after it."
  }

  validation {
    condition     = var.node_gateway_url != null || var.listen_host != "0.0.0.0"
    error_message = "With listen_host 0.0.0.0 the address at which nodes reach the gateway is not known: set node_gateway_url."
  }
}

variable "tls" {
  description = "How clients get TLS: mode internal (a certificate authority of the machine's own, for its address), sslip (a public certificate for ADDRESS.sslip.io), domain (one for a DNS name of yours), none (a proxy in front of the machine terminates TLS)."
  type = object({
    mode   = string
    domain = optional(string)
    email  = optional(string)
  })
  default = { mode = "internal" }

  validation {
    condition     = contains(["internal", "sslip", "domain", "none"], var.tls.mode)
    error_message = "tls.mode must be internal, sslip, domain or none."
  }

  validation {
    condition = (
      (var.tls.mode == "domain") == (var.tls.domain != null)
      && (var.tls.domain == null || can(regex("^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\.)+[a-z]{2,63}$", var.tls.domain)))
    )
    error_message = "tls.domain must be a DNS name in lower case with mode domain, and absent with any other."
  }

  validation {
    condition     = var.tls.email == null || can(regex("^[^@\\s{}\"]+@[^@\\s{}\"]+$", var.tls.email))
    error_message = "tls.email must be an e-mail address."
  }
}

variable "public_ipv4" {
  description = "The machine's public IPv4 address; null where it has none (tls.mode none only)."
  type        = string
  default     = null

  validation {
    condition     = var.public_ipv4 != null || contains(["none", "domain"], var.tls.mode)
    error_message = "tls.mode internal and sslip need public_ipv4."
  }

  validation {
    condition     = var.public_ipv4 == null || can(cidrhost("${var.public_ipv4}/32", 0))
    error_message = "public_ipv4 must be an IPv4 address."
  }
}

variable "private_network" {
  description = "Network of the nodes (CIDR), which may reach the gateway's port on this machine and nothing else. Null where it is not known."
  type        = string
  default     = null

  validation {
    condition     = var.private_network == null || can(cidrhost(var.private_network, 0))
    error_message = "private_network must be a network such as 10.20.0.0/16."
  }
}

variable "nat" {
  description = "Whether the private network reaches the internet through this machine."
  type        = bool
  default     = false

  validation {
    condition     = !var.nat || var.private_network != null
    error_message = "nat needs private_network."
  }
}

variable "state_device" {
  description = "Block device with an ext4 file system that becomes /var/lib/sandbox-fleet; null keeps state on the machine's own disk."
  type        = string
  default     = null

  validation {
    condition     = var.state_device == null || can(regex("^/dev/[A-Za-z0-9/_.-]+$", var.state_device))
    error_message = "state_device must be a path below /dev."
  }
}

variable "gateway_settings" {
  description = "More keys of the gateway's settings file; host, port and state_dir are set already."
  type        = any
  default     = {}

  validation {
    condition     = can(keys(var.gateway_settings)) && length(setintersection(keys(var.gateway_settings), ["host", "port", "state_dir"])) == 0
    error_message = "gateway_settings must be a map without host, port and state_dir."
  }
}

variable "autoscaler_settings" {
  description = "More keys of the autoscaler's settings file, such as tick_seconds; those that this module sets are refused."
  type        = any
  default     = {}

  validation {
    condition = can(keys(var.autoscaler_settings)) && length(setintersection(
      keys(var.autoscaler_settings),
      ["deployment", "gateway_url", "node_gateway_url", "token_file", "state_dir", "providers", "pools"],
    )) == 0
    error_message = "autoscaler_settings must be a map without deployment, gateway_url, node_gateway_url, token_file, state_dir, providers and pools."
  }
}

variable "provider_tables" {
  description = "The autoscaler's tables [providers.NAME], as in its settings file. They name a secret's file and never hold the secret itself."
  type        = any

  validation {
    condition     = can(keys(var.provider_tables)) && alltrue([for name, _ in var.provider_tables : can(regex("^[a-z]([a-z0-9-]{0,22}[a-z0-9])?$", name))])
    error_message = "provider_tables must be a map; its names follow the rule for deployment."
  }

  validation {
    condition = alltrue(flatten([
      for table in values(var.provider_tables) : [for key in keys(table) : !contains(["token", "api_token", "refresh_token", "password"], key)]
    ]))
    error_message = "A secret must not stand in the settings: name a file with it (token_file, api_token_file, refresh_token_file)."
  }
}

variable "pools" {
  description = "The autoscaler's [[pools]], as in its settings file: name, provider, role, offers, min, max and so on."
  type        = any

  validation {
    condition = can(length(var.pools)) && alltrue([
      for pool in var.pools : can(regex("^[a-z]([a-z0-9-]{0,22}[a-z0-9])?$", pool.name)) && contains(keys(var.provider_tables), pool.provider)
    ])
    error_message = "Each pool needs a name (1 to 24 of a-z, 0-9 and -) and a provider that is a key of provider_tables."
  }

  validation {
    condition     = length(distinct([for pool in var.pools : pool.name])) == length(var.pools)
    error_message = "Each pool needs a name of its own."
  }

  validation {
    condition     = alltrue([for pool in var.pools : try(pool.min, 0) <= try(pool.max, 1)])
    error_message = "A pool's min must not be above its max."
  }
}

variable "secret_file" {
  description = "File whose arrival starts the autoscaler: the cloud's API token, which an operator copies there by hand."
  type        = string

  validation {
    condition     = can(regex("^/var/lib/sandbox-fleet/autoscaler/[A-Za-z0-9._-]+$", var.secret_file))
    error_message = "secret_file must lie in /var/lib/sandbox-fleet/autoscaler, which only the autoscaler reads."
  }
}

variable "object_storage" {
  description = "S3-compatible bucket that takes a copy of both databases every day; null for none. Its keys are put into a file on the machine by hand."
  type = object({
    endpoint = string
    region   = string
    bucket   = string
    prefix   = optional(string, "backup")
  })
  default = null

  validation {
    condition = var.object_storage == null || (
      can(regex("^https://[a-z0-9.-]+$", var.object_storage.endpoint))
      && can(regex("^[a-z0-9-]+$", var.object_storage.region))
      && can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", var.object_storage.bucket))
      && can(regex("^[A-Za-z0-9][A-Za-z0-9/_-]*$", var.object_storage.prefix))
    )
    error_message = "object_storage needs endpoint (https://HOST), region, bucket (an S3 bucket name) and a prefix of letters, digits, / _ and -."
  }
}

variable "max_user_data" {
  description = "Most bytes of the rendered user data; Hetzner takes 32 KiB."
  type        = number
  default     = 32768
}
