output "node_gateway_url" {
  description = "Where nodes reach the gateway, inside of the private network."
  value       = local.gateway_url
}

output "init_script" {
  description = "The gateway's init script; also in build/init.sh."
  value       = module.render.init_script
}

output "gateway_toml" {
  description = "The gateway's settings file."
  value       = module.render.gateway_toml
}

output "autoscaler_toml" {
  description = "The autoscaler's settings file."
  value       = module.render.autoscaler_toml
}
