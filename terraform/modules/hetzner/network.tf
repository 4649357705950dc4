resource "hcloud_network" "fleet" {
  name              = var.deployment
  ip_range          = var.network_cidr
  labels            = module.render.labels
  delete_protection = var.protect
}

resource "hcloud_network_subnet" "fleet" {
  network_id   = hcloud_network.fleet.id
  type         = "cloud"
  network_zone = var.network_zone
  ip_range     = var.subnet_cidr
}

# Workers without a public address reach the internet through the gateway, which masquerades for them.
resource "hcloud_network_route" "nat" {
  count = local.needs_nat ? 1 : 0

  network_id  = hcloud_network.fleet.id
  destination = "0.0.0.0/0"
  gateway     = local.gateway_ip

  # Two changes of one network at a time fail with "locked", so they are made one after another.
  depends_on = [hcloud_network_subnet.fleet]
}

# It outlives the machine: a rebuilt gateway has the same address.
resource "hcloud_primary_ip" "gateway" {
  name              = "${var.deployment}-gateway"
  type              = "ipv4"
  assignee_type     = "server"
  location          = var.location
  auto_delete       = false
  labels            = module.render.labels
  delete_protection = var.protect
}

resource "hcloud_firewall" "gateway" {
  name   = "${var.deployment}-gateway"
  labels = module.render.labels

  rule {
    description = "clients"
    direction   = "in"
    protocol    = "tcp"
    port        = "443"
    source_ips  = var.client_cidrs
  }

  # A public certificate authority verifies the name on port 80.
  dynamic "rule" {
    for_each = var.tls.mode == "internal" ? [] : ["acme"]

    content {
      description = "challenge of the certificate authority, and redirect to HTTPS"
      direction   = "in"
      protocol    = "tcp"
      port        = "80"
      source_ips  = ["0.0.0.0/0", "::/0"]
    }
  }

  dynamic "rule" {
    for_each = length(var.admin_cidrs) == 0 ? [] : ["ssh"]

    content {
      description = "operators"
      direction   = "in"
      protocol    = "tcp"
      port        = "22"
      source_ips  = var.admin_cidrs
    }
  }

  rule {
    description = "ping and path MTU"
    direction   = "in"
    protocol    = "icmp"
    source_ips  = ["0.0.0.0/0", "::/0"]
  }
}

# The gateway reaches workers over the private network, so nothing needs to come in from outside: what no rule allows is
# dropped. Outgoing traffic is open; what sandboxes may reach is decided on the node.
resource "hcloud_firewall" "worker" {
  name   = "${var.deployment}-worker"
  labels = module.render.labels

  rule {
    description = "path MTU"
    direction   = "in"
    protocol    = "icmp"
    source_ips  = ["0.0.0.0/0", "::/0"]
  }
}
