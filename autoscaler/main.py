"""The composition root: settings in, a running autoscaler out.  The only module that knows all parts."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from sqlalchemy.exc import DBAPIError

from autoscaler import lock, teardown, user_data
from autoscaler.clock import ClockAnchor, ClockGuard, DaemonClock
from autoscaler.core.pools import misfits
from autoscaler.daemon import Daemon
from autoscaler.errors import AutoscalerError, LockedError
from autoscaler.executor import Executor
from autoscaler.lanes import ThreadLanes
from autoscaler.lock import Lease
from autoscaler.observe import Observer
from autoscaler.provider_polling import Pace
from autoscaler.reconcile import Reconciler
from autoscaler.settings import AutoscalerSettings
from autoscaler.store.db import is_away
from autoscaler.store.journal import Journal
from autoscaler.throttled_log import ThrottledLog
from gateway.client import GatewayClient
from providers import registry
from providers.base import ComputeProvider
from providers.base import SettingsError as ProviderSettingsError

log = logging.getLogger(__name__)

ANCHOR: Final = "clock.json"
AWAY: Final = "the journal cannot be used now"


@dataclass(frozen=True)
class Assembly:
    """One autoscaler, assembled."""

    journal: Journal
    providers: Mapping[str, ComputeProvider]
    reconciler: Reconciler


@contextlib.contextmanager
def assembled(
    settings: AutoscalerSettings, environ: Mapping[str, str], *, execute: bool = False, once: bool = False
) -> Iterator[Assembly]:
    """Assemble one autoscaler, and close its journal at the end.

    Args:
        settings: what to run.
        environ: where providers look up secrets that their settings name.
        execute: whether it may change anything.
        once: whether it is for one look, beside a daemon that may run: at a copy of the journal, and without waiting
            for heartbeats.

    Raises:
        AutoscalerError: the token, a provider or the journal cannot be used, or a pool could never work.
    """
    providers = make_providers(settings, environ)
    _refuse_misfits(settings, providers)
    gateway = GatewayClient(settings.gateway_url, _token(settings), attempts=1)
    templates = {pool.name: user_data.launch_template(pool, settings, gateway) for pool in settings.pools}
    policy = user_data.fleet_policy(settings)
    clock = DaemonClock()
    journal = read_journal(settings) if once else open_journal(settings)
    lanes = ThreadLanes()
    try:
        guard = ClockGuard(clock, settings.clock_grace_seconds, _clock_jumped, ClockAnchor(settings.state_dir / ANCHOR))
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
            executor=Executor(journal, providers, gateway, policy, templates, clock) if execute else None,
            lanes=lanes,
        )
        yield Assembly(journal, providers, reconciler)
    finally:
        lanes.close()
        journal.close()


def run(settings: AutoscalerSettings, environ: Mapping[str, str], *, execute: bool) -> None:
    """Run the daemon until a signal.

    Raises:
        AutoscalerError: it cannot start, or another one is running.
    """
    with locked(settings), assembled(settings, environ, execute=execute) as parts:
        begin = partial(log.info, "autoscaler of %s: %d pools, %s", settings.deployment, len(settings.pools))
        if not execute:
            begin("observing only")
            Daemon(parts.reconciler.tick, _no_op, settings.tick_seconds).run()
        elif not parts.journal.shared:
            begin("executing")
            Daemon(parts.reconciler.tick, parts.reconciler.prune, settings.tick_seconds).run()
        else:
            _take_turns(parts, settings, partial(begin, "executing"))


@contextlib.contextmanager
def _noting_absence(trouble: ThrottledLog) -> Iterator[None]:
    """Note that the database is away or the lease is lost: both pass, and neither is a fault of this process."""
    try:
        yield
    except LockedError as error:
        trouble.report(AWAY, str(error))
    except DBAPIError as error:
        if not is_away(error):
            raise
        trouble.report(AWAY, " ".join(str(error.orig).split()))
    else:
        trouble.resolve(AWAY)


def _take_turns(parts: Assembly, settings: AutoscalerSettings, begin: Callable[[], None]) -> None:
    """Run while this process has the lease, and stand by while another has it.

    Raises:
        LockedError: another has acted since this one did; whoever restarts the process gives it a fresh view.
    """
    lease, begun = Lease(parts.journal.engine, settings.deployment), threading.Event()
    parts.journal.guard = lease.guard
    trouble = ThrottledLog(log, time.monotonic)

    def tick(is_stopping: Callable[[], bool]) -> None:
        if lease.overtaken:
            os.kill(os.getpid(), signal.SIGTERM)
        elif lease.is_held():
            if not begun.is_set():
                begun.set()
                begin()
            with _noting_absence(trouble):
                parts.reconciler.tick(lambda: is_stopping() or not lease.is_held())

    def prune() -> None:
        if lease.is_held():
            parts.reconciler.prune()

    with lease.kept():
        Daemon(tick, prune, settings.tick_seconds).run()
    if lease.overtaken:
        raise LockedError(f"another autoscaler has taken over {settings.deployment}; this one ends, start it again")


@contextlib.contextmanager
def locked(settings: AutoscalerSettings) -> Iterator[None]:
    """Hold the lock of the one that acts.

    Raises:
        AutoscalerError: another one holds it, or its directory cannot be used.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.held(settings.lock))
        except OSError as error:
            raise AutoscalerError(f"the state directory {settings.state_dir} cannot be used: {error}") from error
        yield


def running(settings: AutoscalerSettings) -> str | None:
    """Return who holds the lock of the one that acts; ``None`` when nobody does.

    Raises:
        AutoscalerError: it cannot be read.
    """
    try:
        return lock.owner(settings.lock)
    except OSError as error:
        why = f"{error.strerror}; run this as the user who owns {settings.state_dir}"
        raise AutoscalerError(f"the lock {settings.lock} cannot be read: {why}") from error


def make_providers(settings: AutoscalerSettings, environ: Mapping[str, str]) -> dict[str, ComputeProvider]:
    """Build the providers of the settings.

    Raises:
        AutoscalerError: a plugin is missing or malformed, or its settings are wrong.
    """
    return {name: _provider(name, settings, environ) for name in settings.providers}


def _provider(name: str, settings: AutoscalerSettings, environ: Mapping[str, str]) -> ComputeProvider:
    table = settings.providers[name]
    kind = str(table.get("kind", name))
    own = {key: value for key, value in table.items() if key != "kind"}
    try:
        return registry.build(kind, own, deployment=settings.deployment, environ=environ)
    except (registry.PluginError, ProviderSettingsError) as error:
        raise AutoscalerError(f"provider {name}: {error}") from error


def check_pools(
    settings: AutoscalerSettings, environ: Mapping[str, str]
) -> tuple[dict[str, ComputeProvider], dict[str, str]]:
    """Refuse the pools that `assembled` would refuse; for commands that only read.

    They run without the secrets of the clouds, so a provider that cannot be built here is not judged.

    Returns:
        The providers, and for each that cannot be built the reason.

    Raises:
        AutoscalerError: a pool could never work.
    """
    built: dict[str, ComputeProvider] = {}
    reasons: dict[str, str] = {}
    for name in settings.providers:
        try:
            built[name] = _provider(name, settings, environ)
        except AutoscalerError as error:
            reasons[name] = str(error)
    _refuse_misfits(settings, built)
    return built, reasons


def _refuse_misfits(settings: AutoscalerSettings, providers: Mapping[str, ComputeProvider]) -> None:
    caps = {name: provider.caps for name, provider in providers.items()}
    if found := misfits(settings.policy().pools, caps):
        raise AutoscalerError("; ".join(found))


def open_journal(settings: AutoscalerSettings) -> Journal:
    """Open the journal of the settings.

    Raises:
        AutoscalerError: it cannot be used.
    """
    try:
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Journal.open(settings.url)
    except OSError as error:
        raise AutoscalerError(f"the journal cannot be opened: {error}") from error


def read_journal(settings: AutoscalerSettings) -> Journal:
    """Return a copy of the journal to look at; where there is none yet, an empty one.

    Raises:
        AutoscalerError: it cannot be read.
    """
    try:
        return Journal.open_copy(settings.url)
    except OSError as error:
        why = f"{error.strerror}; run this as the user who owns {settings.state_dir}"
        raise AutoscalerError(f"the journal cannot be read: {why}") from error


def _token(settings: AutoscalerSettings) -> str:
    try:
        token = settings.token_file.read_text(errors="replace").strip()
    except OSError as error:
        why = f"{settings.token_file}: {error.strerror}; put an operator token into it"
        raise AutoscalerError(f"token_file: {why}") from error
    if not token:
        raise AutoscalerError(f"token_file: {settings.token_file} is empty; put an operator token into it")
    if not (token.isascii() and token.isprintable()):
        # As a header it would break every call, and with it every tick.
        raise AutoscalerError(f"token_file: {settings.token_file} holds no token, or more than one; put one into it")
    return token


def _clock_jumped(seconds: float) -> None:
    log.warning("the wall clock jumped by %.0f s: nothing is deleted for its age for a while", seconds)


@contextlib.contextmanager
def _sole(journal: Journal, settings: AutoscalerSettings) -> Iterator[None]:
    """Keep every autoscaler on the journal from acting until the block ends."""
    if not journal.shared:
        yield
        return
    lease = Lease(journal.engine, settings.deployment)
    if not lease.renew():
        raise LockedError(f"{lease.holder()} has the lease of {settings.deployment}; stop that autoscaler first")
    journal.guard = lease.guard
    with lease.kept():
        yield


def _no_op() -> None:
    """Do nothing, as a daemon does that only observes."""


def release_fleet(settings: AutoscalerSettings, environ: Mapping[str, str], within: float) -> list[teardown.Remaining]:
    """Delete the whole fleet; the caller holds the lock.

    Args:
        settings: whose fleet.
        environ: where providers look up secrets that their settings name.
        within: seconds for everything.

    Returns:
        Each instance and provider that is left.

    Raises:
        AutoscalerError: a provider or the journal cannot be used.
    """
    providers = make_providers(settings, environ)
    with contextlib.closing(open_journal(settings)) as journal, _sole(journal, settings):
        names = frozenset(intent.name for intent in journal.open_intents())
        left = teardown.release(journal, providers, clock=DaemonClock(), within=within, lanes=ThreadLanes())
    for sentence in teardown.forget_nodes(GatewayClient(settings.gateway_url, _token(settings), attempts=1), names):
        log.warning("%s", sentence)
    return left
