# The module has no provider: these runs need no network and no account.

variables {
  deployment      = "prod"
  cloud           = "hetzner"
  wheel_url       = "https://files.example.org/sandbox_fleet-0.1.0-py3-none-any.whl"
  wheel_sha256    = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
  listen_host     = "10.20.1.2"
  public_ipv4     = "192.0.2.10"
  private_network = "10.20.0.0/16"
  nat             = true
  state_device    = "/dev/disk/by-id/scsi-0HC_Volume_4711"
  secret_file     = "/var/lib/sandbox-fleet/autoscaler/hcloud.token"
  provider_tables = {
    hetzner = { token_file = "/var/lib/sandbox-fleet/autoscaler/hcloud.token", ssh_keys = ["42"], networks = [4711], ipv4 = false, reach = null }
  }
  pools = [
    { name = "cpu", provider = "hetzner", max = 8, image = "debian-12", offers = [{ type = "cx43", location = "fsn1" }, { type = "cx33", location = "fsn1" }] },
    { name = "builder", provider = "hetzner", role = "builder", min = 1, max = 2, node = { labels = { say = "a \"b\": c" } } },
  ]
}

run "names_and_labels" {
  assert {
    condition     = output.gateway_name == "prod-gateway"
    error_message = "the gateway's name is made from the deployment's"
  }
  assert {
    condition     = output.gateway_labels["sandbox-fleet/deployment"] == "prod" && output.gateway_labels["sandbox-fleet/role"] == "gateway"
    error_message = "the gateway's machine is known by its labels"
  }
  assert {
    condition     = !contains(keys(output.gateway_labels), "sandbox-fleet/op")
    error_message = "with an operation's label the autoscaler would take the gateway for an instance of its own"
  }
}

run "settings_are_written_as_toml" {
  assert {
    condition     = strcontains(output.autoscaler_toml, "offers = [{\"location\"=\"fsn1\",\"type\"=\"cx43\"},{\"location\"=\"fsn1\",\"type\"=\"cx33\"}]")
    error_message = "a list of objects becomes a list of inline tables"
  }
  assert {
    condition     = strcontains(output.autoscaler_toml, "node = {\"labels\"={\"say\"=\"a \\\"b\\\": c\"}}")
    error_message = "colons inside of strings stay"
  }
  assert {
    condition     = !strcontains(output.autoscaler_toml, "reach")
    error_message = "what is null is left out"
  }
  assert {
    condition     = strcontains(output.autoscaler_toml, "node_gateway_url = \"http://10.20.1.2:8090\"")
    error_message = "nodes reach the gateway at its private address"
  }
}

run "cloud_init_is_yaml_and_small" {
  assert {
    condition     = yamldecode(output.user_data).hostname == "prod-gateway"
    error_message = "the document can be read as YAML"
  }
  assert {
    condition     = length(base64encode(output.user_data)) / 4 * 3 < 24 * 1024
    error_message = "a quarter of the 32 KiB stays free for pools"
  }
  assert {
    condition = {
      for file in yamldecode(output.user_data).write_files : file.path => { mode = file.permissions, content = file.content }
    } == output.files
    error_message = "every file arrives byte for byte"
  }
}

run "internal_tls" {
  assert {
    condition     = output.public_url == "https://192.0.2.10" && strcontains(output.files["/etc/caddy/Caddyfile"].content, "tls internal")
    error_message = "without a name the address is certified by the machine's own authority"
  }
  assert {
    condition     = output.ca_file == "/var/lib/sandbox-fleet/caddy/pki/authorities/local/root.crt"
    error_message = "the certificate to trust lies on the state volume"
  }
}

run "sslip_tls" {
  variables {
    tls = { mode = "sslip", email = "ops@example.org" }
  }
  assert {
    condition     = output.public_url == "https://192-0-2-10.sslip.io" && strcontains(output.files["/etc/caddy/Caddyfile"].content, "email ops@example.org")
    error_message = "the address is part of the name"
  }
  assert {
    condition     = output.ca_file == null && !strcontains(output.files["/etc/caddy/Caddyfile"].content, "tls internal")
    error_message = "a public authority needs no trust of its own"
  }
}

run "a_machine_behind_a_proxy_has_none_of_its_own" {
  variables {
    cloud            = "ucloud"
    tls              = { mode = "none" }
    public_ipv4      = null
    private_network  = null
    nat              = false
    state_device     = null
    listen_host      = "0.0.0.0"
    node_gateway_url = "http://prod-gateway:8090"
  }
  assert {
    condition     = length([for path in keys(output.files) : path if strcontains(path, "caddy") || strcontains(path, "nftables")]) == 0
    error_message = "neither proxy nor NAT is set up"
  }
  assert {
    condition     = strcontains(output.autoscaler_toml, "gateway_url = \"http://127.0.0.1:8090\"") && output.public_url == "http://prod-gateway:8090"
    error_message = "the autoscaler stays on the machine; nodes use the name"
  }
  assert {
    condition     = !strcontains(output.files["/usr/local/lib/sandbox-fleet/install"].content, "/etc/fstab")
    error_message = "state lies on the machine's own disk"
  }
}

run "backup_only_with_a_bucket" {
  variables {
    object_storage = { endpoint = "https://hel1.your-objectstorage.com", region = "hel1", bucket = "fleet-state" }
  }
  assert {
    condition     = strcontains(output.files["/usr/local/lib/sandbox-fleet/backup"].content, "https://hel1.your-objectstorage.com/fleet-state/backup/")
    error_message = "copies go into the bucket"
  }
}

run "too_much_user_data_is_refused" {
  command = plan

  variables {
    max_user_data = 4096
  }
  expect_failures = [output.user_data]
}

run "a_bad_deployment_is_refused" {
  command = plan

  variables {
    deployment = "Prod_1"
  }
  expect_failures = [var.deployment]
}

run "a_taken_label_is_refused" {
  command = plan

  variables {
    labels = { "sandbox-fleet/op" = "abc" }
  }
  expect_failures = [var.labels]
}

run "a_label_with_a_colon_is_refused" {
  command = plan

  variables {
    labels = { team = "a:b" }
  }
  expect_failures = [var.labels]
}

run "a_wheel_without_tls_is_refused" {
  command = plan

  variables {
    wheel_url = "http://files.example.org/a.whl"
  }
  expect_failures = [var.wheel_url]
}

run "a_wheel_without_digest_is_refused" {
  command = plan

  variables {
    wheel_sha256 = "latest"
  }
  expect_failures = [var.wheel_sha256]
}

run "a_domain_without_a_name_is_refused" {
  command = plan

  variables {
    tls = { mode = "domain" }
  }
  expect_failures = [var.tls]
}

run "a_secret_in_the_settings_is_refused" {
  command = plan

  variables {
    provider_tables = { hetzner = { token = "abc" } }
  }
  expect_failures = [var.provider_tables]
}

run "a_pool_without_its_provider_is_refused" {
  command = plan

  variables {
    pools = [{ name = "cpu", provider = "elsewhere" }]
  }
  expect_failures = [var.pools]
}

run "two_pools_of_one_name_are_refused" {
  command = plan

  variables {
    pools = [{ name = "cpu", provider = "hetzner" }, { name = "cpu", provider = "hetzner" }]
  }
  expect_failures = [var.pools]
}

run "everywhere_is_no_address_for_nodes" {
  command = plan

  variables {
    listen_host = "0.0.0.0"
  }
  expect_failures = [var.node_gateway_url]
}

run "settings_of_the_module_cannot_be_replaced" {
  command = plan

  variables {
    gateway_settings    = { port = 1 }
    autoscaler_settings = { token_file = "/tmp/token" }
  }
  expect_failures = [var.gateway_settings, var.autoscaler_settings]
}
