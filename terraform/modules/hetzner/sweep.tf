# Workers use the network and keep being billed, and Terraform does not know them. This resource depends on all that the
# sweep needs, so a destroy begins with it: it stops the autoscaler, lets it release its fleet, and then deletes by
# label whatever is left. A destroy that is refused (protect is still true) touches nothing.
#
# The API token is taken from HCLOUD_TOKEN, as the provider takes it, and never stands in the state.

resource "terraform_data" "sweep" {
  input = {
    deployment = var.deployment
    host       = hcloud_primary_ip.gateway.ip_address
    protected  = var.protect
  }

  provisioner "local-exec" {
    when    = destroy
    command = "python3 \"${path.module}/sweep.py\""

    environment = {
      SWEEP_DEPLOYMENT = self.input.deployment
      SWEEP_HOST       = self.input.host
      SWEEP_PROTECTED  = self.input.protected
    }
  }

  depends_on = [
    hcloud_firewall.gateway,
    hcloud_firewall.worker,
    hcloud_network_route.nat,
    hcloud_network_subnet.fleet,
    hcloud_server.gateway,
    hcloud_ssh_key.admin,
    hcloud_volume_attachment.state,
  ]
}
