"""Listings: all providers at the same time, each waited for only so long, and none called twice at once."""

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from autoscaler.clock import Clock
from autoscaler.core.world import ProviderView
from autoscaler.lanes import Lanes
from autoscaler.throttled_log import Remarks
from providers.base import ComputeProvider, ErrorKind, Offer, ProviderError

log = logging.getLogger(__name__)

OFFERS_SECONDS: Final = 60.0
"""Offers are asked for this often; an answer that failed leaves the last ones standing."""
QUIET_SECONDS: Final = 60.0
"""A provider that asks for fewer calls, and does not say for how long, is left alone this long."""
OFFERS_AGAIN_SECONDS: Final = 10.0
"""After an answer that failed they are asked for again."""
FRESH_SECONDS: Final = 60.0
"""A listing that came after its tick is used by the next one if it was begun no longer ago than this."""


@dataclass(frozen=True)
class Pace:
    """How long an observer waits for what."""

    heartbeat_seconds: float = 0.0
    """After a start nothing is changed until every node has had this long to be heard of, unless there is none."""
    list_seconds: float = 0.0
    """Between two listings of a provider that counts calls."""
    look_seconds: float = 10.0
    """A look waits so long for the gateway, and for each provider."""


class Sight:
    """One provider from look to look.  `look` is called in the provider's lane, the rest between looks."""

    def __init__(self, name: str, provider: ComputeProvider, clock: Clock, list_seconds: float) -> None:
        self._name = name
        self._provider = provider
        self._clock = clock
        self._list_seconds = list_seconds
        self._offers: tuple[Offer, ...] = ()
        self._offers_again_at = float("-inf")
        self._listed_at = float("-inf")
        self._quiet_until = float("-inf")
        self._remarks = Remarks(log, clock.monotonic)
        self.took = 0.0
        """Seconds of the last look."""

    def blind(self, problem: str, *, is_resting: bool = False) -> ProviderView:
        """What is known without a listing."""
        return ProviderView(self._provider.caps, None, offers=self._offers, problem=problem, is_resting=is_resting)

    def pause(self) -> ProviderView | None:
        """The view while it is not to be asked; ``None`` when it may be."""
        now = self._clock.monotonic()
        if now < self._quiet_until:
            return self.blind("it asked for fewer calls")
        rest = self._listed_at + self._list_seconds - now
        if self._provider.caps.calls_per_hour is not None and rest > 0:
            return self.blind(f"it is listed again in {rest:.0f} s", is_resting=True)
        return None

    def look(self) -> ProviderView:
        """Asks it.  Nothing here raises: a provider that fails or breaks is blind."""
        began_at, trouble = self._clock.monotonic(), f"provider {self._name} cannot be asked"
        try:
            inventory = self._provider.list()
        except ProviderError as error:
            self._quieten(error)
            self._remarks.tell(trouble, f"{error.kind}: {error}")
            return self.blind(str(error))
        except Exception as error:  # noqa: BLE001 - a plugin that breaks must not stop the other providers
            words = f"{type(error).__name__}: {error}"
            self._remarks.tell(trouble, words, level=logging.ERROR, trace=True)
            return self.blind(words)
        else:
            self._remarks.over(trouble)
            self._listed_at = self._clock.monotonic()
            self._ask_offers()
            taken_at = inventory.taken_at.timestamp()
            caps = self._provider.caps
            return ProviderView(caps, inventory.instances, taken_at, self._offers, inventory.leftovers)
        finally:
            self.took = self._clock.monotonic() - began_at

    def _ask_offers(self) -> None:
        """Without the catalogue nothing new is bought, but what is there can be seen, and deleted."""
        if self._clock.monotonic() < self._offers_again_at:
            return
        wait, trouble = OFFERS_SECONDS, f"the offers of provider {self._name} cannot be asked"
        try:
            self._offers = tuple(self._provider.offers())
        except ProviderError as error:
            self._remarks.tell(trouble, f"{error.kind}: {error}")
            wait = max(error.retry_after or 0.0, OFFERS_AGAIN_SECONDS)
        except Exception as error:  # noqa: BLE001 - as above
            self._remarks.tell(trouble, f"{type(error).__name__}: {error}", level=logging.ERROR, trace=True)
        else:
            self._remarks.over(trouble)
        self._offers_again_at = self._clock.monotonic() + wait

    def _quieten(self, error: ProviderError) -> None:
        if error.kind is ErrorKind.RATE_LIMIT:
            self._quiet_until = self._clock.monotonic() + (error.retry_after or QUIET_SECONDS)


@dataclass(frozen=True)
class _Look:
    future: "Future[ProviderView]"
    began_at: float


class Lookout:
    """Looks at all providers.

    A listing that does not end in time goes on in its lane, and nothing else is called there until it ends: so what it
    shows then is still as the rows say.  A provider that was late is not waited for again until it has been in time.
    """

    def __init__(self, providers: Mapping[str, ComputeProvider], clock: Clock, pace: Pace) -> None:
        self._sights = {name: Sight(name, provider, clock, pace.list_seconds) for name, provider in providers.items()}
        self._clock = clock
        self._pace = pace
        self._looks: dict[str, _Look] = {}
        self._paused: dict[str, ProviderView] = {}
        """Those that this look does not ask; a rest that ends before `views` is one all the same."""
        self._late: set[str] = set()

    def begin(self, lanes: Lanes) -> "list[Future[ProviderView]]":
        """Begins what can be begun.

        Args:
            lanes: where providers are called; always the same.

        Returns:
            What to wait for before `views`.
        """
        begun: list[Future[ProviderView]] = []
        now = self._clock.monotonic()
        self._paused.clear()
        for name, sight in self._sights.items():
            before = self._looks.get(name)
            if before is not None and before.future.done() and now - before.began_at > FRESH_SECONDS:
                del self._looks[name]
            if name in self._looks:
                continue
            if (paused := sight.pause()) is not None:
                self._paused[name] = paused
                continue
            future = lanes.start(name, sight.look)
            if future is not None:
                self._looks[name] = _Look(future, now)
                begun += [future] if name not in self._late else []
        return begun

    def views(self) -> dict[str, ProviderView]:
        """What each provider has shown by now."""
        return {name: self._view(name, sight) for name, sight in self._sights.items()}

    def _view(self, name: str, sight: Sight) -> ProviderView:
        look = self._looks.get(name)
        if look is None:
            return self._paused.get(name) or sight.blind("a call to it has not ended yet")
        if not look.future.done():
            self._late.add(name)
            return sight.blind(f"its listing has not ended after {self._clock.monotonic() - look.began_at:.0f} s")
        del self._looks[name]
        if sight.took <= self._pace.look_seconds:
            self._late.discard(name)
        return look.future.result()
