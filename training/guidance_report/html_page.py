"""The report as one HTML page that loads nothing else; every recorded text is escaped."""

from collections.abc import Sequence
from html import escape
from typing import Final

from qguide.training.guidance_report.plots import arms_plot, reliability_plot
from qguide.training.guidance_report.schema import Arm, Comparison, GuidanceReport, Reliability
from qguide.training.guidance_report.tables import (
    ReportTable,
    arms_table,
    detail_tables,
    reliability_table,
    signed_text,
)

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8886; --blue: #2a6fbb; --good: #1a7f37; --bad: #c62828; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
.helps { border-left: .3rem solid var(--good); } .harms { border-left: .3rem solid var(--bad); }
.unclear, .too_few { border-left: .3rem solid var(--line); }
.finding { padding: .3rem .8rem; margin: .5rem 0; }
svg { max-width: 30rem; width: 100%; font-size: 11px; fill: currentColor; }
svg text { text-anchor: middle; } svg .name { text-anchor: end; } svg .arm { text-anchor: start; }
.axis, .diagonal, .bar { stroke: currentColor; fill: none; }
.diagonal { stroke-dasharray: 4 4; opacity: .5; }
.bar { stroke: var(--blue); stroke-width: 2; } .dot { fill: var(--blue); }
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def html_of(report: GuidanceReport) -> str:
    """The whole page."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width"><title>Guidance report</title>',
        f"<style>{_STYLE}</style></head><body><h1>Guidance report</h1>",
        f"<p>{report.episodes:,} episodes of {report.tasks:,} tasks, {report.steps:,} steps.</p>",
        _findings(report),
        _arms("arms", report.arms),
        *(
            "".join(map(_finding, environment.comparisons))
            + _arms(environment.name, environment.arms)
            for environment in report.environments
        ),
        *map(_reliability, report.reliability),
        *map(_table, detail_tables(report)),
        _bad_rows(report),
    ]
    return "\n".join(filter(None, parts)) + "\n</body></html>\n"


def _findings(report: GuidanceReport) -> str:
    verdict = f'<p class="finding">{escape(report.verdict)}</p>'
    if report.comparisons:
        return verdict + "".join(map(_finding, report.comparisons))
    return verdict + f'<p class="finding unclear">{escape(report.sentences[0])}</p>'


def _finding(comparison: Comparison) -> str:
    return f'<p class="finding {comparison.finding}">{escape(comparison.sentence)}</p>'


def _arms(title: str, arms: Sequence[Arm]) -> str:
    return _table(arms_table(title, arms)) + arms_plot(arms)


def _reliability(found: Reliability) -> str:
    return (
        _table(reliability_table(found))
        + f"<p>{escape(found.sentence)}. Rank correlation {signed_text(found.rank_correlation)} "
        f"over {found.episodes:,} episodes; {found.steps:,} steps.</p>" + reliability_plot(found)
    )


def _bad_rows(report: GuidanceReport) -> str:
    if not report.bad_rows:
        return ""
    items = "".join(f"<li>{escape(message)}</li>" for message in report.bad_row_messages)
    count = f"{report.bad_rows:,} in all; the first are:"
    return f"<h2>Rows left out</h2><p>{count}</p><ul>{items}</ul>"


def _table(table: ReportTable) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.names)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return (
        f"<h2>{escape(table.title)}</h2><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )
