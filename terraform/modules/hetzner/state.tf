# Databases, tokens and certificates. The volume outlives the machine.

resource "hcloud_volume" "state" {
  name              = "${var.deployment}-state"
  size              = var.state_volume_gb
  location          = var.location
  format            = "ext4"
  labels            = module.render.labels
  delete_protection = var.protect
}

resource "hcloud_volume_attachment" "state" {
  volume_id = hcloud_volume.state.id
  server_id = hcloud_server.gateway.id
  # The install script mounts it.
  automount = false
}
