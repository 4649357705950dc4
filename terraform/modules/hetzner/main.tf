# The gateway's machine and its surroundings. The autoscaler creates and deletes workers; they are never in the state.

locals {
  gateway_ip     = cidrhost(var.subnet_cidr, 2) # the first address of a network is Hetzner's own router
  secret_file    = "/var/lib/sandbox-fleet/autoscaler/hcloud.token"
  workers_public = var.worker_public_net.ipv4 || var.worker_public_net.ipv6
  needs_nat      = !var.worker_public_net.ipv4

  # Known locations; an unknown one is left to the API.
  zones = { fsn1 = "eu-central", nbg1 = "eu-central", hel1 = "eu-central", ash = "us-east", hil = "us-west", sin = "ap-southeast" }
}

module "render" {
  source = "../render"

  deployment   = var.deployment
  cloud        = "hetzner"
  labels       = var.labels
  wheel_url    = var.wheel_url
  wheel_sha256 = var.wheel_sha256
  listen_host  = local.gateway_ip
  tls          = var.tls
  public_ipv4  = hcloud_primary_ip.gateway.ip_address

  private_network = var.network_cidr
  nat             = local.needs_nat

  state_device = "/dev/disk/by-id/scsi-0HC_Volume_${hcloud_volume.state.id}"
  secret_file  = local.secret_file

  gateway_settings    = var.gateway_settings
  autoscaler_settings = var.autoscaler_settings
  object_storage      = var.object_storage
  provider_tables = {
    hetzner = merge(var.hetzner_settings, {
      token_file = local.secret_file
      ssh_keys   = [tostring(hcloud_ssh_key.admin.id)]
      networks   = [tonumber(hcloud_network.fleet.id)]
      # A firewall filters the public interface; a server without one refuses it.
      firewalls = local.workers_public ? [tonumber(hcloud_firewall.worker.id)] : []
      ipv4      = var.worker_public_net.ipv4
      ipv6      = var.worker_public_net.ipv6
      reach     = "private"
    })
  }
  pools = [for pool in var.pools : merge({ provider = "hetzner" }, pool)]
}

resource "hcloud_ssh_key" "admin" {
  name       = "${var.deployment}-admin"
  public_key = trimspace(var.ssh_public_key)
  labels     = module.render.labels
}

resource "hcloud_server" "gateway" {
  name        = module.render.gateway_name
  server_type = var.gateway_server_type
  image       = var.gateway_image
  location    = var.location
  user_data   = module.render.user_data
  ssh_keys    = [hcloud_ssh_key.admin.id]
  labels      = module.render.gateway_labels

  firewall_ids = [hcloud_firewall.gateway.id]

  # The provider wants both alike.
  delete_protection  = var.protect
  rebuild_protection = var.protect

  shutdown_before_deletion = true

  public_net {
    ipv4_enabled = true
    ipv4         = hcloud_primary_ip.gateway.id
    ipv6_enabled = false
  }

  network {
    subnet_id = hcloud_network_subnet.fleet.id
    ip        = local.gateway_ip
    # Without it, it would be detached and attached again at every apply.
    alias_ips = []
  }

  lifecycle {
    # A change of any of these would replace the machine. Settings and releases are changed on it (docs/terraform.md).
    ignore_changes = [user_data, image, ssh_keys]
  }

  # A server can only join a network that has a subnet already, and none that is being changed.
  depends_on = [hcloud_network_subnet.fleet, hcloud_network_route.nat]
}
