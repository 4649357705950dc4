output "public_url" {
  description = "What clients set as UCLOUD_SANDBOX_URL."
  value       = module.fleet.public_url
}

output "next_steps" {
  description = "What to do after the first apply."
  value       = module.fleet.next_steps
}

output "gateway_toml" {
  description = "The gateway's settings file."
  value       = module.fleet.gateway_toml
}

output "autoscaler_toml" {
  description = "The autoscaler's settings file."
  value       = module.fleet.autoscaler_toml
}

output "user_data" {
  description = "cloud-init document of the gateway's machine."
  value       = module.fleet.user_data
}

output "install_script" {
  description = "For a newer wheel: run it on the machine."
  value       = module.fleet.install_script
}
