# A fleet on UCloud. There is no Terraform provider for UCloud, so the gateway's machine is ordered, and ended, by the
# project's own command, `sandboxes bootstrap ucloud`, which is idempotent: it finds again what it ordered before.
#
# Before the first apply, by hand (docs/terraform.md says how): a drive folder with this module's init script, a private
# network, an API token in a file.
#
#   terraform apply -target=terraform_data.files   # writes build/init.sh and build/*.toml
#   … upload build/init.sh into the bootstrap folder …
#   terraform apply

terraform {
  required_version = ">= 1.9, < 2.0"
}

locals {
  secret_file = "/var/lib/sandbox-fleet/autoscaler/ucloud.token"
  build       = abspath("${path.root}/build")
  # Both the gateway and its nodes join this network, where machines know one another by name.
  gateway_url = "http://${module.render.gateway_name}:8090"

  # The gateway's own machine, as `sandboxes bootstrap` reads it: the operator's token, the gateway's script.
  order_toml = <<-TOML
    deployment = ${jsonencode(var.deployment)}

    [providers.ucloud]
    api_token_file = ${jsonencode(abspath(pathexpand(var.api_token_file)))}
    base_url = ${jsonencode(var.base_url)}
    bootstrap_folder = ${jsonencode(var.gateway_folder)}
    private_networks = [${jsonencode(var.private_network)}]
    disk_gb = ${var.disk_gb}
  TOML
}

module "render" {
  source = "../../modules/render"

  deployment       = var.deployment
  cloud            = "ucloud"
  wheel_url        = var.wheel_url
  wheel_sha256     = var.wheel_sha256
  listen_host      = "0.0.0.0" # only the private network and UCloud's own proxy lead to it
  node_gateway_url = "http://${var.deployment}-gateway:8090"
  tls              = { mode = "none" } # a public link of UCloud brings the certificate
  secret_file      = local.secret_file

  provider_tables = {
    ucloud = {
      api_token_file   = local.secret_file
      base_url         = var.base_url
      bootstrap_folder = var.worker_folder
      private_networks = [var.private_network]
    }
  }
  pools = var.pools

  # What all nodes together may cost, where the caps are set.
  autoscaler_settings = {
    max_hourly  = var.max_hourly
    max_monthly = var.max_monthly
  }
}

# What the first apply writes: the script to upload, and the settings for the command.
resource "terraform_data" "files" {
  triggers_replace = [sha256(module.render.init_script), sha256(local.order_toml)]

  provisioner "local-exec" {
    command = "umask 077 && mkdir -p \"$BUILD\" && printf %s \"$INIT\" > \"$BUILD/init.sh\" && printf %s \"$ORDER\" > \"$BUILD/order.toml\""

    environment = {
      BUILD = local.build
      INIT  = module.render.init_script
      ORDER = local.order_toml
    }
  }
}

resource "terraform_data" "gateway" {
  input = {
    config = "${local.build}/order.toml"
  }
  # Another machine only for another product or image, or a generation that the operator counts up.
  triggers_replace = [var.product, var.image, var.generation]

  provisioner "local-exec" {
    command = "sandboxes bootstrap ucloud --config \"$CONFIG\" --product \"$PRODUCT\" --image \"$IMAGE\" --generation \"$GENERATION\""

    environment = {
      CONFIG     = self.input.config
      PRODUCT    = var.product
      IMAGE      = var.image
      GENERATION = var.generation
    }
  }

  # Ends the gateway's machine, and with it its state. The fleet has to be released on it first: docs/terraform.md.
  provisioner "local-exec" {
    when    = destroy
    command = "sandboxes bootstrap ucloud --config \"$CONFIG\" --delete"

    environment = {
      CONFIG = self.input.config
    }
  }

  depends_on = [terraform_data.files]
}
