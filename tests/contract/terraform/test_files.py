"""What can be seen of Terraform's files without a terraform program."""

import re
from pathlib import Path
from typing import Any, Final

import hcl2
import pytest

from autoscaler.core import naming
from providers.base import DEPLOYMENT_LABEL, ROLE_LABEL
from tests.contract.terraform import stub_provider
from tests.contract.terraform.conftest import ROOT, TERRAFORM

FILES: Final = sorted(path for path in TERRAFORM.rglob("*.tf") if ".terraform" not in path.parts)
MODULES: Final = sorted({path.parent for path in FILES})
TEMPLATES: Final = sorted((TERRAFORM / "modules" / "render" / "templates").iterdir())


def plain(value: Any) -> Any:
    """Without the quotes and marks that the parser leaves."""
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items() if not str(key).startswith("__")}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.strip('"') if isinstance(value, str) else value


def parsed(path: Path) -> dict[str, Any]:
    with path.open() as file:
        found: dict[str, Any] = plain(hcl2.load(file))
    return found


def blocks(kind: str, module: Path) -> list[dict[str, Any]]:
    return [block for path in sorted(module.glob("*.tf")) for block in parsed(path).get(kind, [])]


def resources(module: Path) -> dict[str, dict[str, Any]]:
    return {
        f"{kind}.{name}": body
        for block in blocks("resource", module)
        for kind, named in block.items()
        for name, body in named.items()
    }


HETZNER: Final = TERRAFORM / "modules" / "hetzner"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TERRAFORM)))
def test_it_can_be_parsed(path: Path) -> None:
    assert parsed(path)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(TERRAFORM)))
def test_every_variable_and_output_is_explained_and_versions_are_bounded(module: Path) -> None:
    for kind in ("variable", "output"):
        for block in blocks(kind, module):
            for name, body in block.items():
                assert body.get("description"), f"{kind} {name} of {module} says nothing"
    bounds = [block["required_version"] for block in blocks("terraform", module)]
    assert bounds == [">= 1.9, < 2.0"]


@pytest.mark.parametrize("module", [HETZNER, TERRAFORM / "examples" / "hetzner"], ids=["module", "example"])
def test_the_provider_is_pinned_from_the_version_without_data_centres(module: Path) -> None:
    (wanted,) = [
        entry["hcloud"]
        for block in blocks("terraform", module)
        for entry in block.get("required_providers", [])
        if "hcloud" in entry
    ]
    assert wanted == {"source": "hetznercloud/hcloud", "version": ">= 1.68, < 2.0"}


def test_everything_made_is_known_to_the_schema_and_no_worker_is_made() -> None:
    known = stub_provider.described()["resources"]
    made = resources(HETZNER)
    hcloud = {name: body for name, body in made.items() if name.startswith("hcloud_")}
    assert [name for name in hcloud if name.startswith("hcloud_server.")] == ["hcloud_server.gateway"]
    for name, body in hcloud.items():
        shape = known[name.partition(".")[0]]
        allowed = {*shape["attributes"], *shape.get("blocks", {}), "lifecycle", "depends_on", "count", "dynamic"}
        assert set(body) <= allowed, name
        assert "datacenter" not in body


def test_the_gateway_is_protected_and_never_replaced_by_a_setting() -> None:
    made = resources(HETZNER)
    gateway = made["hcloud_server.gateway"]
    assert gateway["delete_protection"] == gateway["rebuild_protection"] == "${var.protect}"
    ignored = str(gateway["lifecycle"])
    assert all(word in ignored for word in ("user_data", "image", "ssh_keys"))
    assert "hcloud_network_subnet.fleet" in str(gateway["depends_on"])
    (network,) = gateway["network"]
    assert network["alias_ips"] == []
    assert made["hcloud_primary_ip.gateway"]["auto_delete"] is False
    for name in ("hcloud_volume.state", "hcloud_primary_ip.gateway", "hcloud_network.fleet"):
        assert made[name]["delete_protection"] == "${var.protect}"
    for name, body in made.items():
        if (
            name.startswith("hcloud_")
            and "labels" in stub_provider.described()["resources"][name.partition(".")[0]]["attributes"]
        ):
            assert "module.render" in body["labels"], name


def test_the_sweep_comes_before_everything_that_workers_hang_on() -> None:
    sweep = resources(HETZNER)["terraform_data.sweep"]
    before = str(sweep["depends_on"])
    for name in ("firewall.worker", "network_subnet.fleet", "network_route.nat", "server.gateway", "ssh_key.admin"):
        assert f"hcloud_{name}" in before
    assert "destroy" in str(sweep["provisioner"])
    assert "triggers_replace" not in sweep, "a replaced sweep would sweep"


def test_the_names_of_the_fleet_are_the_autoscalers() -> None:
    text = "".join(path.read_text() for path in FILES)
    for variable in ("deployment", "pools", "provider_tables"):
        assert f'variable "{variable}"' in text
    rule = naming.NAME_PATTERN
    assert (TERRAFORM / "modules" / "render" / "variables.tf").read_text().count(rule) == 3
    for label in (DEPLOYMENT_LABEL, ROLE_LABEL):
        assert f'"{label}"' in text


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_uses_only_what_it_is_given(path: Path) -> None:
    main = (TERRAFORM / "modules" / "render" / "main.tf").read_text()
    given = set(re.findall(r"^    (\w+)\s+= ", main, flags=re.MULTILINE)) | {"file", "path"}
    used = set(re.findall(r"(?<!\$)\$\{(?:\w+\()?([a-z_0-9]+)", path.read_text()))
    assert used <= given
    assert path.name in main


def test_every_module_is_documented() -> None:
    text = (ROOT / "docs" / "terraform.md").read_text()
    for module in MODULES:
        assert f"terraform/{module.relative_to(TERRAFORM)}" in text
