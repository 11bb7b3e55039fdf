"""The report as one HTML page that loads nothing else; the template escapes every recorded text.

Its plots are SVG, without a library: their colours are the page's.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from qguide.training.guidance_report.schema import Arm, GuidanceReport, Reliability
from qguide.training.guidance_report.tables import arms_table, detail_tables, reliability_table, signed_text

_WIDTH: Final = 460
_HEIGHT: Final = 300
_LEFT: Final = 48
_RIGHT: Final = _WIDTH - 30
_BOTTOM: Final = 40
_TOP: Final = 24
_ROW: Final = 40
_CHARACTER: Final = 11
"""Room for a character of a name: as wide as the font is high, which few are."""


class Scale:
    """Maps values to positions."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self.low, self.high = min(values), max(values)
        if self.low == self.high:
            self.low, self.high = self.low - 0.5, self.high + 0.5
        self._first, self._last = first, last

    def __call__(self, value: float) -> float:
        """The position of a value."""
        share = (value - self.low) / (self.high - self.low)
        return round(self._first + share * (self._last - self._first), 1)


def reliability_plot(found: Reliability) -> str:
    """Mean outcome by mean Q, with intervals, and the diagonal on which both are equal."""
    q_values = [part.mean_q for part in found.bins]
    outcomes = [bound for part in found.bins for bound in (*part.ci95, part.mean_outcome)]
    x = Scale(q_values, _LEFT, _RIGHT)
    y = Scale(outcomes, _HEIGHT - _BOTTOM, _TOP)
    low, high = max(x.low, y.low), min(x.high, y.high)
    parts = [_axes(x, y)]
    if low < high:
        parts.append(f'<line class="diagonal" x1="{x(low)}" y1="{y(low)}" x2="{x(high)}" y2="{y(high)}"/>')
    for part in found.bins:
        at = x(part.mean_q)
        parts.append(
            f'<line class="bar" x1="{at}" y1="{y(part.ci95[0])}" x2="{at}" y2="{y(part.ci95[1])}"/>'
            f'<circle class="dot" cx="{at}" cy="{y(part.mean_outcome)}" r="4">'
            f"<title>Q {part.mean_q:.3g}, outcome {part.mean_outcome:.3g}, {part.steps} steps"
            "</title></circle>"
        )
    label = escape(f"mean outcome by mean Q of {found.q_model}")
    return _svg(_HEIGHT, label, parts)


def arms_plot(arms: Sequence[Arm]) -> str:
    """Mean outcome of each arm with its interval, below its name, however long that is."""
    height = _ROW * len(arms) + _BOTTOM
    width = max(_WIDTH, *(_LEFT + _CHARACTER * len(arm.name) for arm in arms))
    bounds = [bound for arm in arms for bound in (arm.ci95 or ()) + (arm.mean_outcome,)]
    x = Scale(bounds, _LEFT, width - _LEFT)
    parts = []
    for number, arm in enumerate(arms):
        y = _ROW * number + 30
        parts.append(f'<text class="arm" x="{_LEFT}" y="{y - 14}">{escape(arm.name)}</text>')
        if arm.ci95 is not None:
            low, high = map(x, arm.ci95)
            parts.append(f'<line class="bar" x1="{low}" y1="{y}" x2="{high}" y2="{y}"/>')
        parts.append(f'<circle class="dot" cx="{x(arm.mean_outcome)}" cy="{y}" r="4"/>')
    parts += [f'<text x="{x(value)}" y="{height - 18}">{value:.3g}</text>' for value in (x.low, x.high)]
    parts.append(f'<text x="{width // 2}" y="{height - 4}">mean outcome</text>')
    return _svg(height, "mean outcome of each arm", parts, width=width)


def _axes(x: Scale, y: Scale) -> str:
    floor = _HEIGHT - _BOTTOM
    return (
        f'<path class="axis" d="M{_LEFT} {_TOP}V{floor}H{_RIGHT}"/>'
        f'<text x="{x(x.low)}" y="{floor + 16}">{x.low:.3g}</text>'
        f'<text x="{x(x.high)}" y="{floor + 16}">{x.high:.3g}</text>'
        f'<text x="{(_LEFT + _WIDTH) // 2}" y="{floor + 32}">mean Q</text>'
        f'<text x="{_LEFT + 10}" y="12">mean outcome</text>'
        f'<text class="name" x="{_LEFT - 6}" y="{y(y.low) + 4}">{y.low:.3g}</text>'
        f'<text class="name" x="{_LEFT - 6}" y="{y(y.high) + 4}">{y.high:.3g}</text>'
    )


def _svg(height: int, label: str, parts: Sequence[str], *, width: int = _WIDTH) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


_FUNCTIONS: Final = (arms_plot, arms_table, detail_tables, reliability_plot, reliability_table, signed_text)


def html_of(report: GuidanceReport) -> str:
    """The whole page."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    functions = {function.__name__: function for function in _FUNCTIONS}
    return environment.get_template("page.html.jinja").render(report=report, **functions)
