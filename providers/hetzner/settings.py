"""Settings of the `hetzner` provider."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from providers import settings
from providers.base import SettingsError

ENDPOINT: Final = "https://api.hetzner.cloud/v1"
VARIABLE: Final = "HCLOUD_TOKEN"
# Hetzner's only machines with GPUs are dedicated servers of this line, which another API sells by the month.
GPU_LINE: Final = "gex"


class HetznerSettings(BaseModel):
    """The provider's table of the settings file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token_env: str | None = None
    """Environment variable with a read-write API token of the project; ``HCLOUD_TOKEN`` unless a file is named."""
    token_file: Path | None = None
    """File with the token, instead of the variable."""
    endpoint: str = ENDPOINT
    """The API; plain ``http`` is accepted on the loopback only."""
    ssh_keys: tuple[str, ...] = Field(min_length=1)
    """Names or ids of the project's SSH keys that may log in as root; without one Hetzner mails a root password."""
    networks: tuple[int, ...] = ()
    """Ids of private networks to join; each needs a subnet in the zone of the pool's locations."""
    firewalls: tuple[int, ...] = ()
    """Ids of firewalls; they filter the public interface only."""
    ipv4: bool = True
    """Whether servers get a public IPv4 address, which is billed apart."""
    ipv6: bool = True
    """Whether servers get a public IPv6 network."""
    reach: Literal["public", "private"] | None = None
    """Which address of a server is used; ``None`` is ``private`` where there is a network, else ``public``."""
    image: str = ""
    """For pools that name none: a name, an id, or ``label:<selector>`` for the newest snapshot that carries labels."""
    architecture: Literal["x86", "arm"] = "x86"
    """Offers and snapshots of the other one are left out."""
    types: tuple[str, ...] = ()
    """The only server types that are offered; empty for all."""
    locations: tuple[str, ...] = ()
    """The only locations that are offered; empty for all."""
    connect_seconds: float = Field(default=5.0, gt=0, le=60)
    """For the connection to the API."""
    read_seconds: float = Field(default=30.0, gt=0, le=300)
    """For each silence of the API."""
    reserve_calls: int = Field(default=600, ge=0)
    """Calls of the project's hourly limit that are kept for deletes, and half of them for listings, too."""
    newborn_seconds: float = Field(default=600.0, gt=0)
    """A server younger than this that is off has not been started yet; an older one has been stopped."""
    leftovers_seconds: float = Field(default=300.0, ge=0)
    """Side resources are looked for this often, and after each delete."""
    claim: tuple[Literal["volume", "primary_ip", "floating_ip"], ...] = ("primary_ip", "floating_ip")
    """What is labelled as the fleet's own when the server it hangs on is deleted, if it carries no label yet.

    A volume may hold somebody's data, so it is only claimed when it is named here.
    """

    @field_validator("types")
    @classmethod
    def _no_gpu(cls, types: tuple[str, ...]) -> tuple[str, ...]:
        for name in types:
            if name.lower().startswith(GPU_LINE):
                raise ValueError(
                    f"{name} has a GPU, and Hetzner Cloud sells none: take a provider with GPUs for this pool"
                )
        return types

    @field_validator("endpoint")
    @classmethod
    def _encrypted(cls, endpoint: str) -> str:
        parts = urlsplit(endpoint)
        if parts.scheme == "https" and parts.hostname:
            return endpoint.rstrip("/")
        if parts.scheme == "http" and parts.hostname and _is_loopback(parts.hostname):
            return endpoint.rstrip("/")
        raise ValueError("must be an https URL: the token travels with every call")

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        if self.token_env is not None and self.token_file is not None:
            raise ValueError("name the token by token_env or by token_file, not by both")
        if not (self.ipv4 or self.ipv6 or self.networks):
            raise ValueError("a server without ipv4, ipv6 and networks is unreachable")
        if self.firewalls and not (self.ipv4 or self.ipv6):
            raise ValueError("firewalls filter the public interface only, and there is none without ipv4 and ipv6")
        if self.reached == "private" and not self.networks:
            raise ValueError("reach = 'private' needs networks")
        if self.reached == "public" and not (self.ipv4 or self.ipv6):
            raise ValueError("reach = 'public' needs ipv4 or ipv6")
        return self

    @property
    def reached(self) -> Literal["public", "private"]:
        """Which address of a server is used."""
        return self.reach or ("private" if self.networks else "public")

    def token(self, environ: Mapping[str, str]) -> str:
        """Return the API token.

        Raises:
            SettingsError: it is not where the settings say.
        """
        if self.token_file is not None:
            return settings.read_token(self.token_file, setting="hetzner: token_file", environ=environ)
        return settings.read_token(self.token_env or VARIABLE, setting="hetzner: token_env", environ=environ)


def parse(table: Mapping[str, object]) -> HetznerSettings:
    """Return the provider's table, checked.

    Raises:
        SettingsError: names each wrong key.
    """
    if any("gpu" in key.lower() for key in table):
        raise SettingsError("hetzner: Hetzner Cloud sells no GPUs: take a provider with GPUs for this pool")
    return settings.parse(HetznerSettings, table, kind="hetzner")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
