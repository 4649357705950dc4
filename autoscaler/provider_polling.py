"""Provider listings: all providers at the same time, each waited for only so long, and none called twice at once."""

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from autoscaler.clock import DaemonClock
from autoscaler.core.doubts import Doubt, unclear_listing, understood_offers
from autoscaler.core.world import ProviderView
from autoscaler.lanes import Lanes
from autoscaler.throttled_log import ThrottledLog
from providers.base import Applied, ComputeProvider, ErrorKind, Inventory, Offer, ProviderError, Scope

log = logging.getLogger(__name__)

OFFERS_SECONDS: Final = 60.0
"""Offers are refreshed this often; a failed refresh leaves the last ones standing."""
OFFERS_RETRY_SECONDS: Final = 10.0
"""Pause after a failed refresh of offers."""
RATE_LIMIT_SECONDS: Final = 60.0
"""Pause after a rate limit, where the provider does not say for how long."""
FRESH_SECONDS: Final = 60.0
"""A listing that outlasted its tick is used by a later one if it began no longer ago than this."""


@dataclass(frozen=True)
class Pace:
    """How long an observer waits for what."""

    heartbeat_seconds: float = 0.0
    """After a start nothing is changed until every node has had this long to send a heartbeat, unless there is none."""
    list_seconds: float = 0.0
    """Between two listings of a provider that counts calls."""
    look_seconds: float = 10.0
    """For the gateway, and for each provider, in one look."""


class ProviderPoll:
    """One provider from poll to poll.  `poll` is called in the provider's lane, the rest between polls."""

    def __init__(self, name: str, provider: ComputeProvider, clock: DaemonClock, list_seconds: float) -> None:
        self._name = name
        self._provider = provider
        self._clock = clock
        self._list_seconds = list_seconds
        self._offers: tuple[Offer, ...] = ()
        self._doubts: tuple[Doubt, ...] = ()
        self._offers_due_at = float("-inf")
        self._listed_at = float("-inf")
        self._limited_until = float("-inf")
        self._log = ThrottledLog(log, clock.monotonic)
        self.took = 0.0
        """Seconds of the last poll."""

    def blind(self, problem: str, *, is_resting: bool = False) -> ProviderView:
        """Return what is known without a listing.

        Args:
            problem: why there is none.
            is_resting: whether that is only because the last one is recent.
        """
        return ProviderView(self._provider.caps, None, offers=self._offers, problem=problem, is_resting=is_resting)

    def paused(self) -> ProviderView | None:
        """Return the view while the provider is not to be called; ``None`` when it may be."""
        now = self._clock.monotonic()
        if now < self._limited_until:
            return self.blind("its rate limit is used up")
        rest = self._listed_at + self._list_seconds - now
        if self._provider.caps.calls_per_hour is not None and rest > 0:
            return self.blind(f"its next listing is due in {rest:.0f} s", is_resting=True)
        return None

    def poll(self) -> ProviderView:
        """Call the provider.  Nothing here raises: a provider that fails or breaks is blind."""
        began_at, trouble = self._clock.monotonic(), f"provider {self._name} cannot be listed"
        try:
            inventory = self._listed()
        except ProviderError as error:
            if error.kind is ErrorKind.RATE_LIMIT:
                self._limited_until = self._clock.monotonic() + (error.retry_after or RATE_LIMIT_SECONDS)
            self._log.report(trouble, f"{error.kind}: {error}")
            return self.blind(str(error))
        except Exception as error:  # noqa: BLE001 - a plugin that breaks must not stop the other providers
            problem = f"{type(error).__name__}: {error}"
            self._log.report(trouble, problem, level=logging.ERROR, trace=True)
            return self.blind(problem)
        else:
            self._log.resolve(trouble)
            self._listed_at = self._clock.monotonic()
            self._refresh_offers()
            return ProviderView(
                self._provider.caps,
                inventory.instances,
                inventory.taken_at.timestamp(),
                self._offers,
                inventory.leftovers,
                doubts=self._doubts,
            )
        finally:
            self.took = self._clock.monotonic() - began_at

    def _listed(self) -> Inventory:
        """Return a listing that can be understood as a whole.

        Raises:
            ProviderError: of the provider, or about what it answered: a part would show machines as gone.
        """
        inventory = self._provider.list()
        if (problem := unclear_listing(inventory)) is not None:
            raise ProviderError(
                f"its listing is not understood: {problem}",
                kind=ErrorKind.BUG,
                applied=Applied.NO,
                scope=Scope.PROVIDER,
            )
        return inventory

    def _refresh_offers(self) -> None:
        """Fetch the catalogue when it is due; without it nothing new is bought, but what is there can be deleted."""
        if self._clock.monotonic() < self._offers_due_at:
            return
        pause, trouble = OFFERS_SECONDS, f"the offers of provider {self._name} cannot be fetched"
        try:
            self._offers, self._doubts = understood_offers(self._provider.offers(), self._name)
        except ProviderError as error:
            self._log.report(trouble, f"{error.kind}: {error}")
            pause = max(error.retry_after or 0.0, OFFERS_RETRY_SECONDS)
        except Exception as error:  # noqa: BLE001 - as above
            self._log.report(trouble, f"{type(error).__name__}: {error}", level=logging.ERROR, trace=True)
        else:
            self._log.resolve(trouble)
        self._offers_due_at = self._clock.monotonic() + pause


@dataclass(frozen=True)
class _Pending:
    future: "Future[ProviderView]"
    began_at: float


class ProviderPoller:
    """Polls all providers.

    A listing that does not end in time goes on in its lane, and nothing else is called there until it ends: so what it
    shows then is still as the rows say.  A provider that was late is not waited for again until it has been in time.
    """

    def __init__(self, providers: Mapping[str, ComputeProvider], clock: DaemonClock, pace: Pace) -> None:
        self._polls = {name: ProviderPoll(name, each, clock, pace.list_seconds) for name, each in providers.items()}
        self._clock = clock
        self._pace = pace
        self._pending: dict[str, _Pending] = {}
        self._paused: dict[str, ProviderView] = {}
        """Those that this round does not call; a pause that ends before `views` counts all the same."""
        self._late: set[str] = set()

    def begin(self, lanes: Lanes) -> "list[Future[ProviderView]]":
        """Begin the polls that are due.

        Args:
            lanes: where providers are called; always the same.

        Returns:
            What to wait for before `views`.
        """
        begun: list[Future[ProviderView]] = []
        now = self._clock.monotonic()
        self._paused.clear()
        for name, poll in self._polls.items():
            before = self._pending.get(name)
            if before is not None and before.future.done() and now - before.began_at > FRESH_SECONDS:
                del self._pending[name]
            if name in self._pending:
                continue
            if (paused := poll.paused()) is not None:
                self._paused[name] = paused
                continue
            future = lanes.start(name, poll.poll)
            if future is not None:
                self._pending[name] = _Pending(future, now)
                begun += [future] if name not in self._late else []
        return begun

    def views(self) -> dict[str, ProviderView]:
        """Return what each provider has shown by now."""
        return {name: self._view(name, poll) for name, poll in self._polls.items()}

    def _view(self, name: str, poll: ProviderPoll) -> ProviderView:
        pending = self._pending.get(name)
        if pending is None:
            return self._paused.get(name) or poll.blind("an earlier call to it has not ended")
        if not pending.future.done():
            self._late.add(name)
            return poll.blind(f"its listing has not ended after {self._clock.monotonic() - pending.began_at:.0f} s")
        del self._pending[name]
        if poll.took <= self._pace.look_seconds:
            self._late.discard(name)
        return pending.future.result()
