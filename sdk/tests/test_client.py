"""The client itself: where the service is, and the token."""

import pytest

from tests.fakes.gateway import TOKEN, Gateway
from ucloud_sandboxes_sdk import (
    AuthenticationError,
    SandboxClient,
)


def test_from_env_names_missing_variables(monkeypatch: pytest.MonkeyPatch, gateway: Gateway) -> None:
    monkeypatch.delenv("UCLOUD_SANDBOX_URL", raising=False)
    monkeypatch.delenv("UCLOUD_SANDBOX_API_TOKEN", raising=False)
    with pytest.raises(ValueError, match=r"UCLOUD_SANDBOX_URL.*UCLOUD_SANDBOX_API_TOKEN"):
        SandboxClient.from_env()
    monkeypatch.setenv("UCLOUD_SANDBOX_URL", gateway.url + "/")
    with pytest.raises(ValueError, match=r"^UCLOUD_SANDBOX_API_TOKEN"):
        SandboxClient.from_env()
    monkeypatch.setenv("UCLOUD_SANDBOX_API_TOKEN", f" {TOKEN}\n")
    with SandboxClient.from_env() as client:
        assert client.list_sandboxes() == []
        assert TOKEN not in repr(client)


@pytest.mark.parametrize("url", ["", "localhost:8090", "ftp://host", "http://"])
def test_base_url_must_be_absolute_http(url: str) -> None:
    with pytest.raises(ValueError, match="base URL"):
        SandboxClient(url)


def test_wrong_token_is_an_authentication_error(gateway: Gateway) -> None:
    with SandboxClient(gateway.url, api_token="wrong") as client, pytest.raises(AuthenticationError):
        client.list_sandboxes()
