"""A Terraform provider that only knows the schema of hcloud, as `hcloud_schema.json` has it.

``terraform validate`` needs that schema, and so does ``terraform test`` for a mocked provider.  Nothing can be made
with it.  The real provider is a program that no package index carries.
"""

import json
import stat
import sys
from pathlib import Path
from typing import Any, Final

from tf import runner, schema, types
from tf.utils import Diagnostics

SCHEMA: Final = Path(__file__).with_name("hcloud_schema.json")
PLATFORM: Final = "linux_amd64"
_TYPES: Final[dict[str, types.TfType]] = {
    "string": types.String(),
    "number": types.Number(),
    "bool": types.Bool(),
    "map(string)": types.Map(types.String()),
    "list(string)": types.List(types.String()),
    "set(string)": types.Set(types.String()),
    "set(number)": types.Set(types.Number()),
}


def described() -> dict[str, Any]:
    """The data file."""
    loaded: dict[str, Any] = json.loads(SCHEMA.read_text())
    return loaded


def _attributes(listed: dict[str, str]) -> list[schema.Attribute]:
    made = []
    for name, words in listed.items():
        presence, _, kind = words.partition(" ")
        flags = dict.fromkeys(presence.split("+"), True)
        made.append(schema.Attribute(name, _TYPES[kind], **flags))
    return made


def _schema(resource: dict[str, Any]) -> schema.Schema:
    blocks = [
        schema.NestedBlock(name, schema.NestMode.Set, schema.Block(_attributes(attributes)))
        for name, attributes in resource.get("blocks", {}).items()
    ]
    return schema.Schema(attributes=_attributes(resource["attributes"]), block_types=blocks)


def _resource(name: str, resource: dict[str, Any]) -> type:
    """A class for one kind of resource, under the name that the framework puts the provider's prefix before."""
    short = name.removeprefix("hcloud_")
    return type(
        short,
        (),
        {
            "get_name": classmethod(lambda _cls: short),
            "get_schema": classmethod(lambda _cls: _schema(resource)),
            "__init__": lambda _self, _provider: None,
            "validate": lambda _self, _diagnostics, _type_name, _config: None,
        },
    )


class HcloudSchema:
    """The provider, as the framework wants it: `tf.iface.Provider`."""

    def get_model_prefix(self) -> str:
        return "hcloud_"

    def get_provider_schema(self, diags: Diagnostics) -> schema.Schema:
        return schema.Schema(attributes=_attributes(described()["provider"]))

    def full_name(self) -> str:
        return str(described()["source"])

    def validate_config(self, diags: Diagnostics, config: dict[str, Any]) -> None:
        """Any will do."""

    def configure_provider(self, diags: Diagnostics, config: dict[str, Any]) -> None:
        """Nothing to reach."""

    def get_data_sources(self) -> list[type]:
        return []

    def get_resources(self) -> list[type]:
        return [_resource(name, resource) for name, resource in described()["resources"].items()]

    def get_functions(self) -> list[type]:
        return []

    def new_resource(self, klass: type) -> Any:
        return klass(self)


def install(mirror: Path) -> None:
    """Puts the provider where Terraform's ``filesystem_mirror`` looks for it."""
    facts = described()
    folder = mirror / facts["source"] / facts["version"] / PLATFORM
    folder.mkdir(parents=True)
    program = folder / f"terraform-provider-hcloud_v{facts['version']}"
    program.write_text(
        f"#!{sys.executable}\nimport runpy\nrunpy.run_path({str(Path(__file__))!r}, run_name='__main__')\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


if __name__ == "__main__":
    runner.run_provider(HcloudSchema())  # type: ignore[arg-type]
