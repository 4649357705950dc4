output "public_url" {
  description = "What clients set as UCLOUD_SANDBOX_URL."
  value       = module.render.public_url
}

output "gateway_ipv4" {
  description = "Public address of the gateway's machine."
  value       = hcloud_primary_ip.gateway.ip_address
}

output "gateway_private_ip" {
  description = "Address of the gateway in the private network; nodes use it."
  value       = local.gateway_ip
}

output "network_id" {
  description = "Id of the private network, as in networks of [providers.hetzner]."
  value       = tonumber(hcloud_network.fleet.id)
}

output "worker_firewall_id" {
  description = "Id of the workers' firewall; in [providers.hetzner] only when workers have public addresses."
  value       = tonumber(hcloud_firewall.worker.id)
}

output "ssh_key_id" {
  description = "Id of the key, as in ssh_keys of [providers.hetzner]."
  value       = hcloud_ssh_key.admin.id
}

output "gateway_toml" {
  description = "The gateway's settings file, /etc/sandbox-fleet/gateway.toml."
  value       = module.render.gateway_toml
}

output "autoscaler_toml" {
  description = "The autoscaler's settings file, /etc/sandbox-fleet/autoscaler.toml."
  value       = module.render.autoscaler_toml
}

output "user_data" {
  description = "cloud-init document of the gateway's machine."
  value       = module.render.user_data
}

output "install_script" {
  description = "Script that installs the wheel and starts everything; it may run again on the machine, for a newer wheel."
  value       = module.render.files["/usr/local/lib/sandbox-fleet/install"].content
}

output "labels" {
  description = "Labels of everything that Terraform creates."
  value       = module.render.labels
}

output "next_steps" {
  description = "What to do after the first apply."
  value = join("\n", concat(
    [
      "# 1. Bring the cloud's token; the autoscaler starts when it is there.",
      "ssh root@${hcloud_primary_ip.gateway.ip_address} 'install -m 0600 -o sandbox-autoscaler /dev/stdin ${local.secret_file}' < hcloud.token",
      "# 2. Take a client's token; clients set UCLOUD_SANDBOX_URL=${module.render.public_url}",
      "ssh root@${hcloud_primary_ip.gateway.ip_address} cat /var/lib/sandbox-fleet/tokens/client",
    ],
    module.render.ca_file == null ? [] : [
      "# 3. Take the certificate that clients trust (REQUESTS_CA_BUNDLE).",
      "ssh root@${hcloud_primary_ip.gateway.ip_address} cat ${module.render.ca_file}",
    ],
  ))
}
