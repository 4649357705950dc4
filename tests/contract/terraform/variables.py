"""Variables of the render module for the fleets that the tests render."""

from collections.abc import Mapping
from typing import Any, Final

STATE: Final = "/var/lib/sandbox-fleet"
HCLOUD: Final = f"{STATE}/autoscaler/hcloud.token"
UCLOUD: Final = f"{STATE}/autoscaler/ucloud.token"
OFFERS: Final = [{"type": "cx43", "location": "fsn1"}, {"type": "cx33", "location": "nbg1"}]
WHEEL: Final = {"wheel_url": "https://files.example.org/sandbox_fleet-0.1.0-py3-none-any.whl", "wheel_sha256": "a" * 64}
FULL: Final[Mapping[str, Any]] = {
    **WHEEL,
    "deployment": "prod",
    "cloud": "hetzner",
    "listen_host": "10.20.0.2",
    "public_ipv4": "192.0.2.10",
    "private_network": "10.20.0.0/16",
    "nat": True,
    "state_device": "/dev/disk/by-id/scsi-0HC_Volume_4711",
    "secret_file": HCLOUD,
    "object_storage": {"endpoint": "https://hel1.your-objectstorage.com", "region": "hel1", "bucket": "fleet-state"},
    "gateway_settings": {"lost_after": 600},
    "autoscaler_settings": {"tick_seconds": 5, "creates_per_tick": 2},
    "provider_tables": {
        "hetzner": {
            "token_file": HCLOUD,
            "ssh_keys": ["42"],
            "networks": [4711],
            "firewalls": [],
            "ipv4": False,
            "ipv6": False,
            "reach": "private",
        }
    },
    "pools": [
        {"name": "cpu", "provider": "hetzner", "max": 8, "image": "debian-12", "offers": OFFERS},
        {"name": "builder", "provider": "hetzner", "role": "builder", "min": 1, "max": 2, "node": {"spool_mb": 1024}},
    ],
}
BEHIND_A_PROXY: Final[Mapping[str, Any]] = {
    **WHEEL,
    "deployment": "fleet",
    "cloud": "ucloud",
    "listen_host": "0.0.0.0",
    "node_gateway_url": "http://fleet-gateway:8090",
    "tls": {"mode": "none"},
    "secret_file": UCLOUD,
    "provider_tables": {
        "ucloud": {"api_token_file": UCLOUD, "bootstrap_folder": "/12/b/w1", "euro_per_unit": {"cpu-amd": "0.1"}}
    },
    "pools": [{"name": "cpu", "provider": "ucloud", "max": 2, "image": "vm-ubuntu/24.04"}],
}
