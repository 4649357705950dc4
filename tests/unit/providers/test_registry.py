"""Plugins are found by entry point, and a malformed one is refused with the reason."""

import re
import sys
import types
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from providers import registry
from providers.base import SettingsError
from providers.local.provider import LocalProvider
from providers.registry import PluginError
from providers.testing.fake import FakeProvider

FAKE = EntryPoint("fake", "providers.testing.fake:FakeProvider", registry.GROUP)


def entry(monkeypatch: pytest.MonkeyPatch, loaded: object, name: str = "fake") -> EntryPoint:
    """Return an entry point that loads ``loaded``."""
    module = types.ModuleType("plugin_under_test")
    module.thing = loaded  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return EntryPoint(name, f"{module.__name__}:thing", registry.GROUP)


class Kindless(FakeProvider):
    kind = "other"


class Capless(FakeProvider):
    caps = None  # type: ignore[assignment]


class Narrow(FakeProvider):
    def delete(self) -> Any:  # type: ignore[override]
        return None


class Waiting(FakeProvider):
    async def list(self) -> Any:  # type: ignore[override]
        return None


class Unmade(FakeProvider):
    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> Any:  # type: ignore[override]
        return None


class NotAClassmethod(FakeProvider):
    def from_settings(self, settings: Mapping[str, object], *, deployment: str, environ: Mapping[str, str]) -> Any:  # type: ignore[override]
        return None


class Unfinished(FakeProvider):
    create = None  # type: ignore[assignment]


def test_a_good_plugin_is_loaded_and_built() -> None:
    assert registry.load("fake", [FAKE]) is FakeProvider
    built = registry.build("fake", {}, deployment="d", environ={}, entries=[FAKE])
    assert isinstance(built, FakeProvider)
    assert built.deployment == "d"


def test_the_local_provider_is_a_good_plugin() -> None:
    assert registry.validate(LocalProvider, name="local") is LocalProvider


@pytest.mark.parametrize(
    ("loaded", "why"),
    [
        (42, "not a subclass of providers.base.ComputeProvider"),
        (dict, "not a subclass of providers.base.ComputeProvider"),
        (Kindless, "has kind 'other'; it must be the name of its entry point, 'fake'"),
        (Capless, "has caps None"),
        (Narrow, "delete(self) -> Any cannot be called as delete(self, ref"),
        (Waiting, "list must be an ordinary blocking method"),
        (Unfinished, "create must be an ordinary blocking method"),
        (Unmade, "from_settings(settings, *, deployment, environ) cannot be called"),
        (NotAClassmethod, "from_settings must be a classmethod"),
    ],
)
def test_a_malformed_plugin_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, loaded: object, why: str
) -> None:
    with pytest.raises(PluginError) as caught:
        registry.load("fake", [entry(monkeypatch, loaded)])
    assert why in str(caught.value)
    assert "'fake'" in str(caught.value)


def test_a_plugin_that_lacks_a_method_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from providers.base import ComputeProvider

    half = type("Half", (ComputeProvider,), {"kind": "fake", "caps": FakeProvider.caps, "offers": FakeProvider.offers})
    with pytest.raises(PluginError, match="lacks connect, create, delete, from_settings, get, list"):
        registry.load("fake", [entry(monkeypatch, half)])


def test_an_unknown_name_is_refused_with_the_installed_ones() -> None:
    with pytest.raises(PluginError, match=r"no provider 'fog' is installed \(installed: fake\)"):
        registry.load("fog", [FAKE])


def test_two_plugins_of_one_name_are_refused() -> None:
    other = EntryPoint("fake", "providers.local.provider:LocalProvider", registry.GROUP)
    with pytest.raises(PluginError, match="several packages bring a provider 'fake'"):
        registry.load("fake", [FAKE, other])


def test_the_same_plugin_listed_twice_is_one() -> None:
    assert registry.load("fake", [FAKE, FAKE]) is FakeProvider


def test_an_import_error_is_reported_with_its_cause() -> None:
    broken = EntryPoint("fake", "no_such_module_at_all:Thing", registry.GROUP)
    with pytest.raises(PluginError, match="ModuleNotFoundError: No module named 'no_such_module_at_all'"):
        registry.load("fake", [broken])


def test_a_missing_package_is_reported_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "providers.hetzner.provider", None)
    with pytest.raises(PluginError, match=re.escape("pip install 'sandbox-fleet[hetzner]'")):
        registry.load("hetzner")


def test_an_import_error_is_reported_with_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "class Cloud:\n    def list(self): ...\n    def rows(self) -> list[dict]: ...\n"
    (tmp_path / "shadowing_plugin.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    broken = EntryPoint("fake", "shadowing_plugin:Cloud", registry.GROUP)
    with pytest.raises(PluginError, match=re.escape(f"not subscriptable ({tmp_path}/shadowing_plugin.py, line 3)")):
        registry.load("fake", [broken])


def test_wrong_settings_are_named() -> None:
    with pytest.raises(SettingsError, match=r"local: root: is missing; rooot: .* did you mean root\?"):
        LocalProvider.from_settings({"rooot": "/x"}, deployment="d", environ={})
