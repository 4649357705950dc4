output "gateway_name" {
  description = "Name of the gateway's machine; an RFC 1123 host name."
  value       = local.gateway_name

  precondition {
    condition     = can(regex("^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", local.gateway_name))
    error_message = "${local.gateway_name} is no host name by RFC 1123."
  }
}

output "labels" {
  description = "Labels of everything that Terraform creates."
  value       = local.labels
}

output "gateway_labels" {
  description = "Labels of the gateway's machine."
  value       = local.gateway_labels
}

output "user_data" {
  description = "cloud-init document of the gateway's machine. Nothing in it is secret: whatever runs on the machine can read it."
  value       = local.user_data

  precondition {
    condition     = local.user_data_bytes <= var.max_user_data
    error_message = "The user data has about ${local.user_data_bytes} bytes; ${var.max_user_data} are allowed. Name fewer pools, or move settings into the files on the machine."
  }
}

output "init_script" {
  description = "The same as one shell script, for a cloud without cloud-init."
  value       = local.init_script
}

output "files" {
  description = "What the machine holds: path => content and mode."
  value       = local.files
}

output "gateway_toml" {
  description = "The gateway's settings file."
  value       = local.toml.gateway
}

output "autoscaler_toml" {
  description = "The autoscaler's settings file."
  value       = local.toml.autoscaler
}

output "public_url" {
  description = "What clients set as UCLOUD_SANDBOX_URL."
  value       = local.public_url
}

output "ca_file" {
  description = "Where the machine keeps the certificate that clients must trust (tls.mode internal); null otherwise."
  value       = var.tls.mode == "internal" ? "${local.state_dir}/caddy/pki/authorities/local/root.crt" : null
}
