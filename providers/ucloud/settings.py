"""Settings of the `ucloud` provider."""

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from providers import settings
from providers.ucloud.client import Credential

BASE_URL: Final = "https://cloud.sdu.dk"
DISK_LEAST: Final = 15
DISK_MOST: Final = 2000
"""GiB; UCloud moves any other size into these bounds without a word, so another one is refused here."""
SECRETS: Final = ("api_token_env", "api_token_file", "refresh_token_env", "refresh_token_file")

Folder = Annotated[str, StringConstraints(pattern=r"^/\d+(/[^/\n]+)*/[A-Za-z0-9][A-Za-z0-9._-]*$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class UCloudSettings(BaseModel):
    """The provider's table of the settings file.  One of the four token settings is needed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    api_token_env: str | None = None
    """Environment variable that holds an API token: bound to one project, with an end of its own choosing."""
    api_token_file: Path | None = None
    """File that holds an API token."""
    refresh_token_env: str | None = None
    """Environment variable that holds a refresh token, which dies 14 days after the login, however it is used."""
    refresh_token_file: Path | None = None
    """File that holds a refresh token."""
    project: str | None = Field(default=None, min_length=1)
    """UUID of the project; the personal workspace by default.  An API token brings its own, which must be this one."""
    base_url: str = Field(default=BASE_URL, pattern=r"^https?://[^/\s]+$")
    """Where UCloud answers."""
    service_provider: str = Field(default="ucloud", min_length=1)
    """Whose machines are bought: the `provider` of UCloud's products.  It is the location of every offer."""
    disk_gb: int = Field(default=100, ge=DISK_LEAST, le=DISK_MOST)
    """GiB of the disk of every instance."""
    private_networks: tuple[str, ...] = ()
    """Ids of private networks that every instance joins."""
    bootstrap_folder: Folder | None = None
    """Drive folder that is mounted into every instance, as `/<drive>/…/<name>`.

    Its last part must be new for each content, because UCloud neither compares nor replaces files safely.  Without a
    folder an instance boots bare and is set up over SSH.
    """
    init_script: FileName = "init.sh"
    """File in that folder that an instance runs once, as root."""
    allow_gpu: bool = False
    """Whether GPU products are sold.

    Off until a test boot has shown with `nvidia-smi` that their VMs have the device: UCloud may accept and charge them
    without one.
    """
    euro_per_unit: Mapping[str, Decimal] = Field(default_factory=dict)
    """What one accounting unit of a product category costs in euro; offers of other categories have no price."""
    page_size: int = Field(default=250, ge=1, le=1000)
    """Jobs on a page of a listing."""
    max_pages: int = Field(default=400, ge=1)
    """A listing that does not end within these is given up: ended jobs stay listed for ever."""
    request_seconds: float = Field(default=45.0, gt=0)
    """What one call may take; UCloud itself answers or gives up within 30 s."""

    @model_validator(mode="after")
    def _has_one_secret(self) -> Self:
        named = [key for key in SECRETS if getattr(self, key) is not None]
        if len(named) != 1:
            raise ValueError(f"set exactly one of {', '.join(SECRETS)}; {', '.join(named) or 'none'} is set")
        return self

    def credential(self, environ: Mapping[str, str]) -> Credential:
        """Return the credential that the settings name.

        Raises:
            SettingsError: it is not there, or empty.
        """
        key = next(key for key in SECRETS if getattr(self, key) is not None)
        token = settings.read_token(getattr(self, key), setting=f"ucloud: {key}", environ=environ)
        return Credential(token, is_refresh_token=key.startswith("refresh"))


def parse(table: Mapping[str, object]) -> UCloudSettings:
    """Return the provider's table, checked.

    Raises:
        SettingsError: names each wrong key.
    """
    return settings.parse(UCloudSettings, table, kind="ucloud")
