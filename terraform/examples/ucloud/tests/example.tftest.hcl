run "plans" {
  command = plan

  variables {
    api_token_file  = "/root/ucloud.token"
    product         = "cpu-amd-zen5-4-vcpu"
    gateway_folder  = "/123/bootstrap/gateway-1"
    worker_folder   = "/123/bootstrap/worker-1"
    private_network = "55"
    wheel_url       = "https://files.example.org/sandbox_fleet-0.1.0-py3-none-any.whl"
    wheel_sha256    = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
  }
  assert {
    condition     = strcontains(output.autoscaler_toml, "api_token_file = \"/var/lib/sandbox-fleet/autoscaler/ucloud.token\"")
    error_message = "the autoscaler finds its token on the machine, not where the operator has it"
  }
  assert {
    condition     = strcontains(output.autoscaler_toml, "node_gateway_url = \"http://fleet-gateway:8090\"") && output.node_gateway_url == "http://fleet-gateway:8090"
    error_message = "nodes know the gateway by its name"
  }
  assert {
    condition     = startswith(output.init_script, "#!/bin/bash\n")
    error_message = "UCloud has no cloud-init: one script does it"
  }
}
