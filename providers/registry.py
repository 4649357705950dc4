"""Finds providers by entry point and refuses malformed ones with the reason."""

import importlib
import inspect
import traceback
from collections.abc import Iterable, Mapping
from importlib import metadata
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from providers.base import Caps, ComputeProvider

GROUP: Final = "sandbox_fleet.providers"
OURS: Final = (__file__, metadata.__file__, importlib.__file__)
METHODS: Final = ("offers", "list", "get", "create", "delete", "connect")


class PluginError(Exception):
    """A provider cannot be used; the message names the plugin, what is wrong with it and what it should be."""


def installed() -> tuple[EntryPoint, ...]:
    """Return the entry points of all installed providers; nothing is imported."""
    return tuple(entry_points(group=GROUP))


def load(kind: str, entries: Iterable[EntryPoint] | None = None) -> type[ComputeProvider]:
    """Return the provider class that is installed under the name ``kind``.

    Args:
        kind: name of the entry point, which must be the class's own ``kind``.
        entries: where to look; the installed ones by default.

    Raises:
        PluginError: none or several have that name, it cannot be imported, or it is no provider.
    """
    known = installed() if entries is None else tuple(entries)
    found = {entry.value: entry for entry in known if entry.name == kind}
    if not found:
        names = ", ".join(sorted({entry.name for entry in known})) or "none"
        raise PluginError(f"no provider {kind!r} is installed (installed: {names}); install the package that brings it")
    if len(found) > 1:
        raise PluginError(
            f"several packages bring a provider {kind!r} ({', '.join(sorted(found))}); remove all but one"
        )
    (entry,) = found.values()
    try:
        loaded = entry.load()
    except Exception as error:
        why = describe(error) + (_cure(entry) if isinstance(error, ModuleNotFoundError) else "")
        raise PluginError(f"the provider {kind!r} ({entry.value}) cannot be imported: {why}") from error
    return validate(loaded, name=kind)


def _cure(entry: EntryPoint) -> str:
    """Return how to install what a provider needs, if its distribution has an extra of the provider's name."""
    extras = entry.dist.metadata.get_all("Provides-Extra") if entry.dist else None
    if entry.dist is None or entry.name not in (extras or ()):
        return ""
    return f"; install what it needs with: pip install '{entry.dist.name}[{entry.name}]'"


def describe(error: Exception) -> str:
    """Return an unexpected error's message, with the file and line of the plugin that it came from, if any."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith(("<frozen ", *OURS))]
    where = f" ({outside[-1].filename}, line {outside[-1].lineno})" if outside else ""
    return f"{type(error).__name__}: {error}{where}"


def build(
    kind: str,
    settings: Mapping[str, object],
    *,
    deployment: str,
    environ: Mapping[str, str],
    entries: Iterable[EntryPoint] | None = None,
) -> ComputeProvider:
    """Return the installed provider ``kind``, made from its settings.

    Raises:
        PluginError: see `load`.
        SettingsError: the settings are wrong.
    """
    return load(kind, entries).from_settings(settings, deployment=deployment, environ=environ)


def validate(loaded: object, *, name: str) -> type[ComputeProvider]:
    """Return ``loaded`` if it is a provider class that the autoscaler can work with.

    Raises:
        PluginError: it is not.
    """
    if not (inspect.isclass(loaded) and issubclass(loaded, ComputeProvider)):
        raise PluginError(f"the provider {name!r} is {loaded!r}, not a subclass of providers.base.ComputeProvider")
    where = f"the provider {name!r} ({loaded.__module__}.{loaded.__qualname__})"
    if loaded.__abstractmethods__:
        raise PluginError(f"{where} lacks {', '.join(sorted(loaded.__abstractmethods__))}")
    kind = getattr(loaded, "kind", None)
    if kind != name:
        raise PluginError(f"{where} has kind {kind!r}; it must be the name of its entry point, {name!r}")
    caps = getattr(loaded, "caps", None)
    if not isinstance(caps, Caps):
        raise PluginError(f"{where} has caps {caps!r}; it must be a providers.base.Caps")
    for method in METHODS:
        if problem := _signature_problem(loaded, method):
            raise PluginError(f"{where}: {problem}")
    if not inspect.ismethod(loaded.from_settings):
        raise PluginError(f"{where}: from_settings must be a classmethod")
    try:
        inspect.signature(loaded.from_settings).bind({}, deployment="", environ={})
    except TypeError as error:
        raise PluginError(
            f"{where}: from_settings(settings, *, deployment, environ) cannot be called: {error}"
        ) from None
    return loaded


def _signature_problem(loaded: type[ComputeProvider], method: str) -> str | None:
    """Return why ``method`` cannot be called as the interface says; ``None`` when it can."""
    wanted = inspect.signature(getattr(ComputeProvider, method))
    written = getattr(loaded, method)
    if not inspect.isfunction(written) or inspect.iscoroutinefunction(written):
        return f"{method} must be an ordinary blocking method"
    given = inspect.signature(written)
    try:
        given.bind(*wanted.parameters)
    except TypeError as error:
        return f"{method}{given} cannot be called as {method}{wanted}: {error}"
    return None
