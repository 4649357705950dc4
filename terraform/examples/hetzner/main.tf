# A whole fleet on Hetzner Cloud: a gateway with its network, and two pools that the autoscaler fills.
#
#   export HCLOUD_TOKEN=…    # read and write, of a project of its own
#   terraform init && terraform apply
#   terraform output -raw next_steps

terraform {
  required_version = ">= 1.9, < 2.0"

  required_providers {
    hcloud = {
      source  = "hetznercloud/hcloud"
      version = ">= 1.68, < 2.0"
    }
  }
}

# The token comes from HCLOUD_TOKEN, so that it stands in no file and in no state.
provider "hcloud" {}

module "fleet" {
  source = "../../modules/hetzner"

  deployment     = var.deployment
  location       = "fsn1"
  ssh_public_key = var.ssh_public_key
  admin_cidrs    = var.admin_cidrs
  wheel_url      = var.wheel_url
  wheel_sha256   = var.wheel_sha256
  protect        = var.protect
  object_storage = var.object_storage
  labels         = { team = "agents" }

  # What all workers together may cost; nothing is ordered that could lead beyond it.
  autoscaler_settings = {
    max_hourly  = var.max_hourly
    max_monthly = var.max_monthly
  }

  pools = [
    {
      name = "cpu"
      max  = 10
      # In order of preference: when one is not available, the next is tried in the same tick.
      offers = [
        { type = "cx43", location = "fsn1" },
        { type = "cx43", location = "nbg1" },
        { type = "cpx42", location = "fsn1" },
      ]
      image        = "debian-12"
      idle_seconds = 900
    },
    {
      name   = "builder"
      role   = "builder"
      max    = 2
      offers = [{ type = "cx43", location = "fsn1" }]
      image  = "debian-12"
    },
  ]
}
