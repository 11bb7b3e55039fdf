"""The report as one HTML page that loads nothing else; the template escapes every recorded text."""

from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from qguide.training.guidance_report.plots import arms_plot, reliability_plot
from qguide.training.guidance_report.schema import GuidanceReport
from qguide.training.guidance_report.tables import (
    arms_table,
    detail_tables,
    reliability_table,
    signed_text,
)

_FUNCTIONS: Final = (
    arms_plot,
    arms_table,
    detail_tables,
    reliability_plot,
    reliability_table,
    signed_text,
)


def html_of(report: GuidanceReport) -> str:
    """The whole page."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    functions = {function.__name__: function for function in _FUNCTIONS}
    return environment.get_template("page.html.jinja").render(report=report, **functions)
