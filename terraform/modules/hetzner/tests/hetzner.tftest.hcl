# Plans against a mocked provider: no network, no account. Ids of the real one are numbers written as strings. Nothing is
# applied, because the end of an applied test is a destroy, and a destroy sweeps.

mock_provider "hcloud" {
  override_during = plan

  mock_resource "hcloud_network" {
    defaults = { id = "4711" }
  }
  mock_resource "hcloud_network_subnet" {
    defaults = { id = "4711-10.20.0.0/20" }
  }
  mock_resource "hcloud_network_route" {
    defaults = { id = "4711-0.0.0.0/0" }
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
  mock_resource "hcloud_volume_attachment" {
    defaults = { id = "314" }
  }
}

variables {
  deployment     = "prod"
  ssh_public_key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExample admin@example.org"
  admin_cidrs    = ["203.0.113.7/32"]
  wheel_url      = "https://files.example.org/sandbox_fleet-0.1.0-py3-none-any.whl"
  wheel_sha256   = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
  pools          = [{ name = "cpu", max = 8, image = "debian-12", offers = [{ type = "cx43", location = "fsn1" }] }]
}

run "protected_by_default" {
  command = plan

  assert {
    condition     = hcloud_server.gateway.delete_protection && hcloud_server.gateway.rebuild_protection
    error_message = "the gateway's machine is protected, in both ways alike"
  }
  assert {
    condition     = hcloud_volume.state.delete_protection && hcloud_primary_ip.gateway.delete_protection && hcloud_network.fleet.delete_protection
    error_message = "state, address and network are protected"
  }
  assert {
    condition     = !hcloud_primary_ip.gateway.auto_delete
    error_message = "the address outlives the machine"
  }
}

run "the_gateway" {
  command = plan

  assert {
    condition     = hcloud_server.gateway.name == "prod-gateway" && hcloud_server.gateway.location == "fsn1"
    error_message = "name and place"
  }
  assert {
    condition     = one(hcloud_server.gateway.network).ip == "10.20.0.2" && length(one(hcloud_server.gateway.network).alias_ips) == 0
    error_message = "the gateway has the second address, and its alias addresses are named as none"
  }
  assert {
    condition     = hcloud_server.gateway.labels["sandbox-fleet/role"] == "gateway" && !contains(keys(hcloud_server.gateway.labels), "sandbox-fleet/op")
    error_message = "it is labelled, and not as an instance of the autoscaler"
  }
  assert {
    condition     = hcloud_volume.state.location == hcloud_server.gateway.location && hcloud_primary_ip.gateway.location == hcloud_server.gateway.location
    error_message = "a volume and an address can only be used in their own location"
  }
}

run "workers_go_out_through_the_gateway" {
  command = plan

  assert {
    condition     = hcloud_network_route.nat[0].gateway == "10.20.0.2" && hcloud_network_route.nat[0].destination == "0.0.0.0/0"
    error_message = "the network's default route leads to the gateway"
  }
  assert {
    condition     = toset([for rule in hcloud_firewall.gateway.rule : rule.port if rule.protocol == "tcp"]) == toset(["443", "22"])
    error_message = "clients and operators come in, nothing else; port 80 stays closed without a public certificate"
  }
  assert {
    condition     = alltrue([for rule in hcloud_firewall.worker.rule : rule.protocol == "icmp"])
    error_message = "nothing but ping reaches a worker from outside"
  }
}

run "a_closed_door_for_operators" {
  command = plan

  variables {
    admin_cidrs = []
    tls         = { mode = "sslip" }
  }
  assert {
    condition     = toset([for rule in hcloud_firewall.gateway.rule : rule.port if rule.protocol == "tcp"]) == toset(["443", "80"])
    error_message = "no networks, no SSH; a public certificate needs port 80"
  }
}

run "settings_name_what_was_made" {
  command = plan

  assert {
    condition     = strcontains(output.autoscaler_toml, "networks = [4711]") && strcontains(output.autoscaler_toml, "ssh_keys = [\"42\"]")
    error_message = "the autoscaler gets the network as a number, and the key"
  }
  assert {
    condition     = strcontains(output.autoscaler_toml, "firewalls = []") && strcontains(output.autoscaler_toml, "ipv4 = false")
    error_message = "a private server takes no firewall"
  }
  assert {
    condition     = strcontains(output.user_data, "/dev/disk/by-id/scsi-0HC_Volume_314") && hcloud_server.gateway.user_data == output.user_data
    error_message = "the machine gets its volume"
  }
  assert {
    condition     = output.public_url == "https://192.0.2.10" && strcontains(output.next_steps, "root@192.0.2.10")
    error_message = "clients and operators get the address"
  }
  assert {
    condition     = terraform_data.sweep.input.deployment == "prod" && terraform_data.sweep.input.host == "192.0.2.10"
    error_message = "the sweep knows the fleet and its gateway"
  }
}

run "public_workers" {
  command = plan

  variables {
    worker_public_net = { ipv4 = true }
  }
  assert {
    condition     = length(hcloud_network_route.nat) == 0
    error_message = "they need no detour"
  }
  assert {
    condition     = strcontains(output.autoscaler_toml, "firewalls = [12]") && strcontains(output.autoscaler_toml, "ipv4 = true")
    error_message = "they get the firewall"
  }
  assert {
    condition     = strcontains(output.install_script, "restart nftables.service") && !strcontains(output.install_script, "sysctl")
    error_message = "the gateway masquerades for nobody, and stays closed to the private network"
  }
}

run "a_data_centre_is_refused" {
  command = plan

  variables {
    location = "fsn1-dc14"
  }
  expect_failures = [var.location]
}

run "a_subnet_outside_is_refused" {
  command = plan

  variables {
    subnet_cidr = "10.30.0.0/20"
  }
  expect_failures = [var.subnet_cidr]
}

run "tokens_never_travel_in_clear" {
  command = plan

  variables {
    tls = { mode = "none" }
  }
  expect_failures = [var.tls]
}

run "what_the_module_sets_cannot_be_replaced" {
  command = plan

  variables {
    hetzner_settings = { networks = [1] }
  }
  expect_failures = [var.hetzner_settings]
}

run "a_location_of_another_zone_is_refused" {
  command = plan

  variables {
    location = "ash"
    pools    = [{ name = "cpu", max = 1 }]
  }
  expect_failures = [var.network_zone]
}

run "an_offer_of_another_zone_is_refused" {
  command = plan

  variables {
    pools = [{ name = "cpu", max = 1, offers = [{ type = "cx43", location = "fsn1" }, { type = "cpx42", location = "ash" }] }]
  }
  expect_failures = [var.pools]
}

run "another_zone_is_taken_as_a_whole" {
  command = plan

  variables {
    location     = "ash"
    network_zone = "us-east"
    pools        = [{ name = "cpu", max = 1, offers = [{ type = "cpx42", location = "ash" }] }]
  }
  assert {
    condition     = hcloud_network_subnet.fleet.network_zone == "us-east"
    error_message = "the subnet is in the zone of the gateway and the workers"
  }
}

run "a_public_range_is_no_private_network" {
  command = plan

  variables {
    network_cidr = "172.66.0.0/16"
    subnet_cidr  = "172.66.0.0/20"
  }
  expect_failures = [var.network_cidr]
}
