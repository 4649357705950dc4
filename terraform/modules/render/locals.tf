locals {
  state_dir   = "/var/lib/sandbox-fleet"
  config_dir  = "/etc/sandbox-fleet"
  program_dir = "/opt/sandbox-fleet"
  lib_dir     = "/usr/local/lib/sandbox-fleet"

  gateway_name = "${var.deployment}-gateway"

  # No label sandbox-fleet/op: it marks what an operation of the autoscaler created, and the autoscaler looks for both.
  labels = merge(var.labels, {
    "sandbox-fleet/deployment" = var.deployment
    "sandbox-fleet/managed-by" = "terraform"
  })
  gateway_labels = merge(local.labels, { "sandbox-fleet/role" = "gateway" })

  gateway_origin = "http://${var.listen_host == "0.0.0.0" ? "127.0.0.1" : var.listen_host}:${var.listen_port}"
  autoscaler_extras = {
    hetzner = "autoscaler,hetzner"
    ucloud  = "autoscaler"
  }[var.cloud]

  public_host = (
    var.tls.mode == "domain" ? var.tls.domain :
    var.tls.mode == "sslip" ? "${replace(var.public_ipv4, ".", "-")}.sslip.io" :
    var.public_ipv4
  )
  public_url = (
    var.tls.mode != "none" ? "https://${local.public_host}" :
    coalesce(var.node_gateway_url, local.gateway_origin)
  )
}
