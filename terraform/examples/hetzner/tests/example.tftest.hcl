mock_provider "hcloud" {
  override_during = plan

  mock_resource "hcloud_network" {
    defaults = { id = "4711" }
  }
  mock_resource "hcloud_primary_ip" {
    defaults = { id = "77", ip_address = "192.0.2.10" }
  }
  mock_resource "hcloud_firewall" {
    defaults = { id = "12" }
  }
  mock_resource "hcloud_ssh_key" {
    defaults = { id = "42" }
  }
  mock_resource "hcloud_server" {
    defaults = { id = "1001" }
  }
  mock_resource "hcloud_volume" {
    defaults = { id = "314" }
  }
}

run "plans" {
  command = plan

  variables {
    ssh_public_key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExample admin@example.org"
    admin_cidrs    = ["203.0.113.7/32"]
    wheel_url      = "https://files.example.org/sandbox_fleet-0.1.0-py3-none-any.whl"
    wheel_sha256   = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    object_storage = { endpoint = "https://hel1.your-objectstorage.com", region = "hel1", bucket = "fleet-state" }
  }
  assert {
    condition     = strcontains(output.autoscaler_toml, "name = \"builder\"") && strcontains(output.autoscaler_toml, "provider = \"hetzner\"")
    error_message = "both pools reach the settings"
  }
  assert {
    condition     = strcontains(output.autoscaler_toml, "max_hourly = \"1.50\"") && strcontains(output.autoscaler_toml, "max_monthly = \"300\"")
    error_message = "the caps in euro reach the settings"
  }
  assert {
    condition     = output.public_url == "https://192.0.2.10"
    error_message = "clients get the address"
  }
}
