"""What is sold and who pays: products, allocations and quotas."""

from dataclasses import dataclass, field
from typing import Any

from tests.fakes.ucloud.faults import ApiError


@dataclass
class Product:
    """One kind of machine."""

    name: str
    category: str
    provider: str = "ucloud"
    cpu: int = 4
    memory: int = 16
    gpu: int = 0
    price: int = 1_000_000
    """Millionths of a unit an hour."""
    vm: bool = True

    def json(self) -> dict[str, Any]:
        unit = {"name": "DKK", "namePlural": "DKK", "floatingPoint": True, "displayFrequencySuffix": True}
        body: dict[str, Any] = {
            "type": "compute",
            "category": {
                "name": self.category,
                "provider": self.provider,
                "productType": "COMPUTE",
                "accountingUnit": unit,
                "accountingFrequency": "PERIODIC_HOUR",
                "freeToUse": False,
            },
            "name": self.name,
            "description": "",
            "productType": "COMPUTE",
            "price": self.price,
            "cpu": self.cpu,
            "memoryInGigs": self.memory,
            "cpuModel": "invented",
        }
        return body | ({"gpu": self.gpu, "gpuModel": "invented"} if self.gpu else {})

    def support(self, queue_status: str | None) -> dict[str, Any]:
        machine = {"suspension": True, "bindLinkToPort": True} | ({"enabled": True} if self.vm else {})
        reference = {"id": self.name, "category": self.category, "provider": self.provider}
        return {
            "product": self.json(),
            "support": {
                "product": reference,
                "docker": {"enabled": True},
                "virtualMachine": machine,
                "native": {},
                "queueStatus": queue_status,
            },
            "features": [],
        }


@dataclass
class Wallet:
    """What a workspace may use of one category; in units."""

    quota: float = 1e9
    used: float = 0.0
    allocated: bool = True

    @property
    def is_locked(self) -> bool:
        return self.used >= self.quota


def default_products() -> list[Product]:
    """Enough to choose from: two CPU kinds, a GPU kind without virtual machines, another provider's."""
    return [
        Product("cpu-amd-zen5-4-vcpu", "cpu-amd-zen5", cpu=4, memory=16, price=500_000),
        Product("cpu-amd-zen5-8-vcpu", "cpu-amd-zen5", cpu=8, memory=32, price=1_000_000),
        Product("cpu-old-4-vcpu", "cpu-old", cpu=4, memory=12, price=400_000),
        Product("gpu-nvidia-b200-1-gpu", "gpu-nvidia-b200", cpu=16, memory=128, gpu=1, price=20_000_000, vm=False),
        Product("elsewhere-2-vcpu", "elsewhere", provider="other", cpu=2, memory=8),
    ]


@dataclass
class Catalogue:
    """All products and the wallets of the one project that buys."""

    products: list[Product] = field(default_factory=default_products)
    wallets: dict[str, Wallet] = field(default_factory=dict)

    def wallet(self, category: str) -> Wallet:
        return self.wallets.setdefault(category, Wallet())

    def find(self, reference: Any) -> Product:
        for product in self.products:
            if isinstance(reference, dict) and reference == {
                "id": product.name,
                "category": product.category,
                "provider": product.provider,
            }:
                return product
        raise ApiError(400, "Bad machine type requested")

    def wallets_json(self) -> dict[str, Any]:
        items = [
            {
                "owner": {"type": "project"},
                "paysFor": {"name": category},
                "allocationGroups": [{"allocations": [{"actived": True}]}] if wallet.allocated else [],
                "totalUsage": int(wallet.used),
                "localUsage": int(wallet.used),
                "maxUsable": max(0, int(wallet.quota - wallet.used)),
                "quota": int(wallet.quota),
            }
            for category, wallet in self.wallets.items()
        ]
        return {"items": items, "itemsPerPage": len(items), "next": None}
