"""The composition root: settings in, a running autoscaler out.  The only module that knows all the parts."""

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from autoscaler import lock, teardown, user_data
from autoscaler.clock import Anchor, Clock, ClockGuard
from autoscaler.core.pools import misfits
from autoscaler.daemon import Daemon
from autoscaler.executor import Executor
from autoscaler.lanes import Threads
from autoscaler.observe import Observer, Pace
from autoscaler.reconcile import Reconciler
from autoscaler.settings import AutoscalerSettings
from autoscaler.store.db import JournalError
from autoscaler.store.journal import Journal
from autoscaler.user_data import BootstrapError
from gateway.client import GatewayClient
from providers import registry
from providers.base import ComputeProvider
from providers.base import SettingsError as ProviderSettingsError

log = logging.getLogger(__name__)

ANCHOR: Final = "clock.json"


class StartError(Exception):
    """The autoscaler cannot start; the sentence says why and what to do."""


@dataclass(frozen=True)
class Parts:
    """One autoscaler, put together."""

    journal: Journal
    providers: Mapping[str, ComputeProvider]
    reconciler: Reconciler


@contextlib.contextmanager
def assembled(
    settings: AutoscalerSettings, environ: Mapping[str, str], *, execute: bool = False, once: bool = False
) -> Iterator[Parts]:
    """All parts of one autoscaler; the journal is closed at the end.

    Args:
        settings: what to run.
        environ: where providers look up secrets that their settings name.
        execute: whether it may change anything.
        once: it is for one look, beside one that may run: at a copy of the journal, and with what is there at once.

    Raises:
        StartError: the token, a provider or the journal cannot be used, or a pool could never work.
    """
    providers = make_providers(settings, environ)
    _refuse_misfits(settings, providers)
    gateway = GatewayClient(settings.gateway_url, _token(settings), attempts=1)
    try:
        preparations = {pool.name: user_data.preparation(pool, settings, gateway) for pool in settings.pools}
        policy = user_data.policy(settings)
    except BootstrapError as error:
        raise StartError(str(error)) from error
    clock = Clock()
    journal = read_journal(settings) if once else open_journal(settings)
    lanes = Threads()
    try:
        guard = ClockGuard(clock, settings.clock_grace_seconds, _clock_jumped, Anchor(settings.state_dir / ANCHOR))
        reconciler = Reconciler(
            observer=Observer(
                providers,
                gateway,
                journal,
                clock,
                guard,
                policy=policy,
                pace=Pace(0.0 if once else settings.heartbeat_seconds, settings.list_seconds),
            ),
            journal=journal,
            gateway=gateway,
            policy=policy,
            clock=clock,
            executor=Executor(journal, providers, gateway, policy, preparations, clock) if execute else None,
            lanes=lanes,
        )
        yield Parts(journal, providers, reconciler)
    finally:
        lanes.close()
        journal.close()


def run(settings: AutoscalerSettings, environ: Mapping[str, str], *, execute: bool) -> None:
    """Runs the daemon until a signal.

    Raises:
        StartError: it cannot start, or another one runs.
    """
    with locked(settings), assembled(settings, environ, execute=execute) as parts:
        mode = "acting" if execute else "looking only"
        log.info("autoscaler of %s: %d pools, %s", settings.deployment, len(settings.pools), mode)
        try:
            with lock.held_in_database(parts.journal.engine, settings.deployment) as assure:
                _daemon(parts.reconciler, assure if execute else _nothing, settings, execute=execute).run()
        except lock.LockedError as error:
            raise StartError(str(error)) from error


def _daemon(
    reconciler: Reconciler, assure: Callable[[], None], settings: AutoscalerSettings, *, execute: bool
) -> Daemon:
    def tick(is_stopping: Callable[[], bool]) -> object:
        try:
            assure()
        except lock.LockedError as error:
            # Another one may act from here on, so this one ends as if it had been asked to.
            log.error("%s", error)
            os.kill(os.getpid(), signal.SIGTERM)
            return None
        return reconciler.tick(is_stopping)

    return Daemon(tick, reconciler.prune if execute else _nothing, settings.tick_seconds)


@contextlib.contextmanager
def locked(settings: AutoscalerSettings) -> Iterator[None]:
    """The lock of the one that acts.

    Raises:
        StartError: another one has it, or its directory cannot be used.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.held(settings.lock))
        except lock.LockedError as error:
            raise StartError(str(error)) from error
        except OSError as error:
            raise StartError(f"the state directory {settings.state_dir} cannot be used: {error}") from error
        yield


def running(settings: AutoscalerSettings) -> str | None:
    """Who holds the lock of the one that acts; ``None`` when nobody does.

    Raises:
        StartError: it cannot be looked at.
    """
    try:
        return lock.owner(settings.lock)
    except OSError as error:
        why = f"{error.strerror}; run this as the user whom {settings.state_dir} belongs to"
        raise StartError(f"the lock {settings.lock} cannot be read: {why}") from error


def make_providers(settings: AutoscalerSettings, environ: Mapping[str, str]) -> dict[str, ComputeProvider]:
    """The providers of the settings.

    Raises:
        StartError: a plugin is missing or malformed, or its settings are wrong.
    """
    return {name: _provider(name, settings, environ) for name in settings.providers}


def _provider(name: str, settings: AutoscalerSettings, environ: Mapping[str, str]) -> ComputeProvider:
    table = settings.providers[name]
    kind = str(table.get("kind", name))
    own = {key: value for key, value in table.items() if key != "kind"}
    try:
        return registry.build(kind, own, deployment=settings.deployment, environ=environ)
    except (registry.PluginError, ProviderSettingsError) as error:
        raise StartError(f"provider {name}: {error}") from error


def check_pools(
    settings: AutoscalerSettings, environ: Mapping[str, str]
) -> tuple[dict[str, ComputeProvider], dict[str, str]]:
    """For commands that only read: refuses what `assembled` would refuse of the pools.

    They run without the secrets of the clouds, so a provider that cannot be made here is not judged.

    Returns:
        The providers, and of those that cannot be made the reason.

    Raises:
        StartError: a pool could never work.
    """
    made: dict[str, ComputeProvider] = {}
    reasons: dict[str, str] = {}
    for name in settings.providers:
        try:
            made[name] = _provider(name, settings, environ)
        except StartError as error:
            reasons[name] = str(error)
    _refuse_misfits(settings, made)
    return made, reasons


def _refuse_misfits(settings: AutoscalerSettings, providers: Mapping[str, ComputeProvider]) -> None:
    caps = {name: provider.caps for name, provider in providers.items()}
    if found := misfits(settings.policy().pools, caps):
        raise StartError("; ".join(found))


def open_journal(settings: AutoscalerSettings) -> Journal:
    """The journal of the settings.

    Raises:
        StartError: it cannot be used.
    """
    try:
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Journal.open(settings.url)
    except (JournalError, OSError) as error:
        raise StartError(str(error)) from error


def read_journal(settings: AutoscalerSettings) -> Journal:
    """The journal of the settings for who only looks; where there is none yet, an empty one.

    Raises:
        StartError: it cannot be read.
    """
    try:
        return Journal.open_copy(settings.url)
    except JournalError as error:
        raise StartError(str(error)) from error
    except OSError as error:
        why = f"{error.strerror}; run this as the user whom {settings.state_dir} belongs to"
        raise StartError(f"the journal cannot be read: {why}") from error


def _token(settings: AutoscalerSettings) -> str:
    try:
        token = settings.token_file.read_text(errors="replace").strip()
    except OSError as error:
        why = f"{settings.token_file}: {error.strerror}; put an operator token into it"
        raise StartError(f"token_file: {why}") from error
    if not token:
        raise StartError(f"token_file: {settings.token_file} is empty; put an operator token into it")
    if not (token.isascii() and token.isprintable()):
        # As a header it would break every call, and with it every tick.
        raise StartError(f"token_file: {settings.token_file} holds no token, or more than one; put one into it")
    return token


def _clock_jumped(seconds: float) -> None:
    log.warning("the wall clock jumped by %.0f s: nothing is deleted for its age for a while", seconds)


def _nothing() -> None:
    """What a daemon that only looks does once an hour."""


def give_up(settings: AutoscalerSettings, environ: Mapping[str, str], within: float) -> list[str]:
    """Deletes the whole fleet; the caller holds the lock.

    Returns:
        A sentence for each instance or provider that is left.

    Raises:
        StartError: a provider or the journal cannot be used.
    """
    providers = make_providers(settings, environ)
    journal = open_journal(settings)
    try:
        names = frozenset(intent.name for intent in journal.open_intents())
        left = teardown.release(journal, providers, clock=Clock(), within=within, lanes=Threads())
    finally:
        journal.close()
    for sentence in teardown.forget(GatewayClient(settings.gateway_url, _token(settings), attempts=1), names):
        log.warning("%s", sentence)
    return left
