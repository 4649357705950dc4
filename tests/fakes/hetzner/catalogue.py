"""What the emulated cloud sells at the start.  Control may change availability, deprecation and prices."""

from typing import Any

LOCATIONS = {
    "fsn1": ("Falkenstein", "DE", "eu-central"),
    "nbg1": ("Nuremberg", "DE", "eu-central"),
    "hel1": ("Helsinki", "FI", "eu-central"),
    "ash": ("Ashburn, VA", "US", "us-east"),
}

# name: cores, GB of memory, GB of disk, architecture, kind of CPU, net price per hour, where
TYPES: dict[str, tuple[int, float, int, str, str, str, tuple[str, ...]]] = {
    "cx23": (2, 4, 40, "x86", "shared", "0.0048000000000000", ("fsn1", "nbg1", "hel1")),
    "cx33": (4, 8, 80, "x86", "shared", "0.0080000000000000", ("fsn1", "nbg1", "hel1")),
    "cx43": (8, 16, 160, "x86", "shared", "0.0144000000000000", ("fsn1", "nbg1", "hel1")),
    "cax21": (4, 8, 80, "arm", "shared", "0.0096000000000000", ("fsn1", "hel1")),
    "cpx42": (8, 16, 320, "x86", "shared", "0.0312000000000000", ("fsn1", "nbg1", "hel1", "ash")),
    "cpx62": (16, 32, 640, "x86", "shared", "0.0616000000000000", ("fsn1", "nbg1", "hel1", "ash")),
    "ccx33": (8, 32, 240, "x86", "dedicated", "0.0777000000000000", ("fsn1", "hel1", "ash")),
}
IPV4_PRICE = "0.0008000000000000"


def money(net: str) -> dict[str, str]:
    return {"net": net, "gross": f"{float(net) * 1.19:.16f}"}


def location(name: str) -> dict[str, Any]:
    city, country, zone = LOCATIONS[name]
    return {
        "id": list(LOCATIONS).index(name) + 1,
        "name": name,
        "description": f"{city} DC Park 1",
        "country": country,
        "city": city,
        "latitude": 50.0,
        "longitude": 12.0,
        "network_zone": zone,
    }


def server_types() -> list[dict[str, Any]]:
    return [_type(number, name) for number, name in enumerate(TYPES, start=101)]


def _type(number: int, name: str) -> dict[str, Any]:
    cores, memory, disk, architecture, cpu, price, places = TYPES[name]
    prices = [
        {
            "location": place,
            "price_hourly": money(price),
            "price_monthly": money(f"{float(price) * 625:.16f}"),
            "included_traffic": 21990232555520,
            "price_per_tb_traffic": money("1.0000000000000000"),
        }
        for place in places
    ]
    available = [
        {"id": place_id, "name": place, "available": True, "recommended": place_id == 1, "deprecation": None}
        for place_id, place in enumerate(places, start=1)
    ]
    return {
        "id": number,
        "name": name,
        "description": name.upper(),
        "category": "Shared vCPU" if cpu == "shared" else "Dedicated vCPU",
        "cores": cores,
        "memory": memory,
        "disk": disk,
        "cpu_type": cpu,
        "storage_type": "local",
        "architecture": architecture,
        "prices": prices,
        "locations": available,
        "deprecated": False,
        "deprecation": None,
        "labels": {},
    }


def pricing() -> dict[str, Any]:
    prices = [
        {"location": place, "price_hourly": money(IPV4_PRICE), "price_monthly": money("0.5000000000000000")}
        for place in LOCATIONS
    ]
    return {
        "currency": "EUR",
        "vat_rate": "19.000000",
        "primary_ips": [{"type": "ipv4", "prices": prices}, {"type": "ipv6", "prices": []}],
        "volume": {"price_per_gb_month": money("0.0440000000000000")},
    }


def image(number: int, name: str | None, architecture: str, created: str, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "type": "system",
        "status": "available",
        "name": name,
        "description": name or f"image {number}",
        "image_size": None,
        "disk_size": 5,
        "created": created,
        "created_from": None,
        "bound_to": None,
        "os_flavor": "debian",
        "os_version": "12",
        "rapid_deploy": True,
        "protection": {"delete": False},
        "deprecated": None,
        "labels": {},
        "architecture": architecture,
        **more,
    }
