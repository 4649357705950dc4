# The two settings files. TOML writes plain values and lists as JSON does, and an object becomes an inline table once the
# colons after its keys are equals signs. Finding those needs the ends of strings: each is marked with U+0001, which
# jsonencode never leaves in its output, and a colon behind a mark is a key's.

locals {
  gateway_values = merge(var.gateway_settings, {
    host      = var.listen_host
    port      = var.listen_port
    state_dir = "${local.state_dir}/gateway"
  })

  autoscaler_values = merge(var.autoscaler_settings, {
    deployment       = var.deployment
    gateway_url      = local.gateway_origin
    node_gateway_url = coalesce(var.node_gateway_url, local.gateway_origin)
    token_file       = "${local.state_dir}/autoscaler/operator.token"
    state_dir        = "${local.state_dir}/autoscaler"
  })

  # One entry for each section of a file: its header and its values.
  gateway_sections = [{ header = "", values = local.gateway_values }]
  autoscaler_sections = concat(
    [{ header = "", values = local.autoscaler_values }],
    [for name, table in var.provider_tables : { header = "[providers.${name}]", values = table }],
    [for pool in var.pools : { header = "[[pools]]", values = pool }],
  )

  toml = {
    for file, sections in { gateway = local.gateway_sections, autoscaler = local.autoscaler_sections } :
    file => join("\n", [
      for section in sections : join("\n", concat(
        section.header == "" ? [] : [section.header],
        [
          for key, value in section.values : "${key} = ${replace(replace(
            replace(jsonencode(value), "/(\"(?:[^\"\\\\]|\\\\.)*\")/", "$1\u0001"),
            "\u0001:", "=",
          ), "\u0001", "")}" if value != null
        ],
        [""],
      ))
    ])
  }
}
