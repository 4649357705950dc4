terraform {
  required_version = ">= 1.9, < 2.0"

  required_providers {
    hcloud = {
      source = "hetznercloud/hcloud"
      # From 1.67 on there are locations only, as in the API; data centres are gone.
      version = ">= 1.68, < 2.0"
    }
  }
}
