# Everything that the gateway's machine holds, once, as path => content. The two encodings below it, cloud-init and one
# shell script, are made from this map.

locals {
  template = {
    autoscaler_extras = local.autoscaler_extras
    bundle_pythons    = join(" ", [for version in var.node_pythons : "--python ${version}"])
    caddy             = var.tls.mode != "none"
    config_dir        = local.config_dir
    email             = var.tls.email
    lib_dir           = local.lib_dir
    listen_host       = var.listen_host
    listen_port       = var.listen_port
    nat               = var.nat
    private_network   = var.private_network
    backup            = var.object_storage != null
    backup_region     = var.object_storage == null ? "" : var.object_storage.region
    backup_url = var.object_storage == null ? "" : join("/", [
      var.object_storage.endpoint, var.object_storage.bucket, var.object_storage.prefix,
    ])
    program_dir  = local.program_dir
    public_host  = local.public_host
    secret_file  = var.secret_file
    state_device = var.state_device
    state_dir    = local.state_dir
    tls_mode     = var.tls.mode
    upstream     = local.gateway_origin
    wheel_sha256 = var.wheel_sha256
    wheel_url    = var.wheel_url
  }

  units = "/etc/systemd/system"
  # path => [template, mode, whether this machine needs it]
  wanted = {
    "${local.lib_dir}/install"                     = ["install.sh.tftpl", "0755", true]
    "${local.lib_dir}/prepare"                     = ["prepare.sh.tftpl", "0755", true]
    "${local.units}/sandbox-fleet-prepare.service" = ["sandbox-fleet-prepare.service.tftpl", "0644", true]
    "${local.units}/sandbox-gateway.service"       = ["sandbox-gateway.service.tftpl", "0644", true]
    "${local.units}/sandbox-autoscaler.service"    = ["sandbox-autoscaler.service.tftpl", "0644", true]
    "${local.units}/sandbox-autoscaler.path"       = ["sandbox-autoscaler.path.tftpl", "0644", true]
    "/etc/caddy/Caddyfile"                         = ["Caddyfile.tftpl", "0644", var.tls.mode != "none"]
    "${local.units}/caddy.service.d/state.conf"    = ["caddy-state.conf.tftpl", "0644", var.tls.mode != "none"]
    "/etc/nftables.conf"                           = ["nftables.conf.tftpl", "0644", var.private_network != null]
    "/etc/sysctl.d/90-sandbox-fleet.conf"          = ["sysctl.conf.tftpl", "0644", var.nat]
    "${local.lib_dir}/backup"                      = ["backup.sh.tftpl", "0755", var.object_storage != null]
    "${local.units}/sandbox-backup.service"        = ["sandbox-backup.service.tftpl", "0644", var.object_storage != null]
    "${local.units}/sandbox-backup.timer"          = ["sandbox-backup.timer.tftpl", "0644", var.object_storage != null]
  }

  files = merge(
    {
      for target, row in local.wanted : target => {
        mode    = row[1]
        content = templatefile("${path.module}/templates/${row[0]}", local.template)
      } if row[2]
    },
    {
      for name, text in local.toml : "${local.config_dir}/${name}.toml" => { mode = "0644", content = text }
    },
  )

  user_data = templatefile("${path.module}/templates/cloud-init.yaml.tftpl", {
    files    = local.files
    hostname = local.gateway_name
    install  = "${local.lib_dir}/install"
  })
  init_script = templatefile("${path.module}/templates/init.sh.tftpl", {
    files   = local.files
    install = "${local.lib_dir}/install"
  })

  # base64 counts bytes, where length counts characters; it rounds up to three.
  user_data_bytes = length(base64encode(local.user_data)) / 4 * 3
}
