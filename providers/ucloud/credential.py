"""The secret of the account, which the settings only name."""

from collections.abc import Mapping
from dataclasses import dataclass

from providers.base import SettingsError
from providers.ucloud.settings import SECRETS, UCloudSettings


@dataclass(frozen=True)
class Secret:
    """The credential of the account."""

    value: str
    is_refresh_token: bool

    def __repr__(self) -> str:
        return f"Secret(is_refresh_token={self.is_refresh_token})"


def secret(settings: UCloudSettings, environ: Mapping[str, str]) -> Secret:
    """The credential that the settings name.

    Raises:
        SettingsError: it is not there, or empty.
    """
    key = next(key for key in SECRETS if getattr(settings, key) is not None)
    where = getattr(settings, key)
    if key.endswith("_env"):
        value = environ.get(where, "").strip()
    else:
        try:
            value = where.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"ucloud: {key}: cannot read {where}: {error}") from None
    if not value or any(character.isspace() for character in value):
        raise SettingsError(f"ucloud: {key}: {where} holds no token; put one line with the token there")
    return Secret(value, is_refresh_token=key.startswith("refresh"))
