"""A clock that tests move by hand."""

from autoscaler.clock import DaemonClock


class HandClock(DaemonClock):
    """Wall and monotonic time that move only when told to."""

    def __init__(self, wall: float = 1_000_000.0, steady: float = 500.0) -> None:
        self.wall, self.steady = wall, steady

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def pass_by(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self.wall += seconds
        self.steady += seconds
