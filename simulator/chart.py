"""A chart of a run as plain SVG: demand and capacity, machines, and money, under one another on one axis of time."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from simulator.engine import RunResult, Sample
from simulator.metrics import RunSummary
from simulator.trace import RESOURCES

WIDTH: Final = 1000
PANEL: Final = 190
GAP: Final = 58
LEFT: Final = 78
RIGHT: Final = 70
TOP: Final = 90
FOOT: Final = 4
MAX_POINTS: Final = 800
"""Points of a line: more cannot be distinguished at this width."""
INK: Final = "#222"
GRID: Final = "#ddd"
USED: Final = "#2a7f9e"
WAITING: Final = "#d9722e"
CAPACITY: Final = "#222"
PAID: Final = "#8e6bb0"
COST: Final = "#3c7d3c"
UNITS: Final = {
    "cpus": ("cores", 1.0),
    "memory_mb": ("GiB of memory", 1024.0),
    "disk_mb": ("GiB of disk", 1024.0),
    "gpus": ("gpus", 1.0),
    "slots": ("sandboxes", 1.0),
    "builds": ("builds", 1.0),
}


@dataclass(frozen=True)
class Series:
    """One series of a panel."""

    name: str
    colour: str
    values: Sequence[float]
    is_area: bool = False


@dataclass(frozen=True)
class Axes:
    """The position of a panel, and the values at its edges."""

    top: float
    most_x: float
    most_y: float

    def x(self, value: float) -> float:
        """Return pixels from the left."""
        return LEFT + value / self.most_x * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Return pixels from the top."""
        return self.top + PANEL - value / self.most_y * PANEL


def draw(run: RunResult, summary: RunSummary) -> str:
    """Return the SVG document."""
    samples = _thinned(run.samples)
    hours = [sample.at / 3600 for sample in samples]
    panels = [_demand(samples, summary), _instances(samples), _money(run, samples, summary)]
    height = TOP + len(panels) * (PANEL + GAP) + FOOT
    body = [*_heading(summary)]
    for number, (title, lines) in enumerate(panels):
        body += _panel(title, lines, hours, TOP + number * (PANEL + GAP))
    body.append(_text((LEFT + WIDTH - RIGHT) / 2, height - 14, "hours since the start of the trace", anchor="middle"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>' + "".join(body) + "</svg>\n"
    )


def _demand(samples: Sequence[Sample], summary: RunSummary) -> tuple[str, list[Series]]:
    resource = max(
        (name for name in summary.utilisation if name in UNITS), key=lambda n: summary.utilisation[n], default="slots"
    )
    place, (unit, scale) = RESOURCES.index(resource), UNITS[resource]
    used = [sample.used[place] / scale for sample in samples]
    demand = [u + sample.wanted[place] / scale for u, sample in zip(used, samples, strict=True)]
    capacity = [sample.capacity[place] / scale for sample in samples]
    return f"Demand and capacity, {unit} (the scarcest resource)", [
        Series("waiting", WAITING, demand, is_area=True),
        Series("running", USED, used, is_area=True),
        Series("capacity of ready nodes", CAPACITY, capacity),
    ]


def _instances(samples: Sequence[Sample]) -> tuple[str, list[Series]]:
    return "Instances (number)", [
        Series("paid for", PAID, [float(sample.instances) for sample in samples], is_area=True),
        Series("ready nodes", CAPACITY, [float(sample.nodes) for sample in samples]),
    ]


def _money(run: RunResult, samples: Sequence[Sample], summary: RunSummary) -> tuple[str, list[Series]]:
    return "Cost up to now, €", [
        Series("cost", COST, _costs(run, samples)),
        Series("lower bound of the whole trace", WAITING, [summary.bound] * len(samples)),
    ]


def _heading(summary: RunSummary) -> list[str]:
    first = (
        f"{summary.jobs} jobs in {summary.hours:.1f} h · {summary.cost:.2f} € = {summary.cost_ratio:.2f} × the lower "
        f"bound · {summary.boots} boots, at most {summary.most_nodes} at once"
    )
    second = (
        f"waiting p50 {summary.wait.p50:.0f} s, p95 {summary.wait.p95:.0f} s, p99 {summary.wait.p99:.0f} s · "
        f"a boot takes {summary.boot:.0f} s"
    )
    return [
        _text(LEFT, 22, summary.trace, size=16, weight="bold"),
        _text(LEFT, 40, first),
        _text(LEFT, 56, second),
    ]


def _panel(title: str, lines: Sequence[Series], hours: Sequence[float], top: float) -> list[str]:
    axes = Axes(top, max(hours[-1], 1e-9), _rounded(max((max(line.values) for line in lines), default=0.0)))
    found = [_text(LEFT, top - 8, title, weight="bold")]
    for share in range(5):
        value = axes.most_y * share / 4
        y = axes.y(value)
        found.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        found.append(_text(LEFT - 6, y + 4, f"{value:g}", anchor="end"))
    step = _step(hours[-1])
    mark = 0.0
    while mark <= hours[-1] + 1e-9:
        found.append(_text(axes.x(mark), top + PANEL + 16, f"{mark:g} h", anchor="middle"))
        mark += step
    for line in lines:
        path = "".join(
            f"{'L' if at else 'M'}{axes.x(x):.1f} {axes.y(y):.1f}"
            for at, (x, y) in enumerate(zip(hours, line.values, strict=True))
        )
        if line.is_area:
            path += f"L{axes.x(hours[-1]):.1f} {axes.y(0):.1f}L{axes.x(hours[0]):.1f} {axes.y(0):.1f}Z"
        look = f'fill="{line.colour}"' if line.is_area else f'fill="none" stroke="{line.colour}" stroke-width="1.5"'
        found.append(f'<path d="{path}" {look}/>')
    return [*found, *_legend(lines, top)]


def _legend(lines: Sequence[Series], top: float) -> list[str]:
    found: list[str] = []
    right = float(WIDTH - RIGHT)
    for line in reversed(lines):
        right -= 7 * len(line.name) + 4
        found.append(_text(right, top - 8, line.name))
        found.append(f'<rect x="{right - 16:.0f}" y="{top - 17:.0f}" width="11" height="10" fill="{line.colour}"/>')
        right -= 28
    return found


def _text(x: float, y: float, words: str, *, size: int = 12, weight: str = "normal", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )


def _costs(run: RunResult, samples: Sequence[Sample]) -> list[float]:
    """Return the euro spent up to each of these moments."""
    return [
        sum(
            instance.cost(provider.settings.billing, sample.at)
            for provider in run.providers.values()
            for instance in provider.instances
            if instance.created_at <= sample.at
        )
        for sample in samples
    ]


def _thinned(samples: Sequence[Sample]) -> list[Sample]:
    """Return few enough of them; of each stretch the one with the most demand, so that no peak is lost."""
    width = max(1, -(-len(samples) // MAX_POINTS))
    return [
        max(samples[at : at + width], key=lambda sample: sample.waiting + sample.running)
        for at in range(0, len(samples), width)
    ]


def _rounded(most: float) -> float:
    """Return a number at or above ``most`` whose quarters are round."""
    if most <= 0:
        return 1.0
    power = 10.0 ** (len(f"{most:.0f}") - 1) if most >= 1 else 0.1
    if most < 0.1:
        power = 0.01
    return next(power * times for times in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 12) if power * times >= most)


def _step(hours: float) -> float:
    """Return the hours between two marks of the axis of time."""
    return next((step for step in (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 6.0, 12.0) if hours / step <= 12), 24.0)
