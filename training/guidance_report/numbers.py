"""Numbers of the report as text; a dash where nothing was recorded."""

from typing import Final

from qguide.training.guidance_report.schema import Interval

NOTHING: Final = "–"


def count_text(value: int) -> str:
    """A number of things."""
    return f"{value:,}"


def number_text(value: float | None) -> str:
    """Three digits, or all digits of what is large."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def signed_text(value: float | None) -> str:
    """A difference, with its sign."""
    return NOTHING if value is None else f"{value:+.3g}"


def share_text(value: float | None) -> str:
    """A share in per cent."""
    return NOTHING if value is None else f"{100 * value:.1f} %"


def interval_text(interval: Interval | None) -> str:
    """Both bounds."""
    return NOTHING if interval is None else f"{interval[0]:.3g} to {interval[1]:.3g}"
