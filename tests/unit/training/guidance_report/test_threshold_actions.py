"""Actions below a threshold, in the report."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qguide.training.guidance_report.build import build_report
from qguide.training.guidance_report.html_page import html_of
from qguide.training.guidance_report.schema import GuidanceReport
from qguide.training.guidance_report.tables import print_report
from tests.support.offers import GUIDED, offer, write_offers


def acted(action: str, outcome: str, **more: Any) -> dict[str, Any]:
    row = {"action": action, "outcome": outcome, "q_before": 0.2, "q_after": 0.2}
    return row | more


def report_of(folder: Path, *steps: dict[str, Any]) -> GuidanceReport:
    rows = [offer(episode=f"e{i}", task=f"t{i}", **step) for i, step in enumerate(steps)]
    write_offers(folder, rows)
    return build_report([folder])


@pytest.fixture
def report(tmp_path: Path) -> GuidanceReport:
    raised = acted("refine", "raised", candidates=("a1",), q_after=0.8, prompt_tokens=30)
    failed = acted("refine", "failed", completion_tokens=10)
    return report_of(
        tmp_path,
        {"threshold": 0.5, "actions": [raised], "outcome": 1.0},
        {"threshold": 0.5, "actions": [failed, acted("stop", "stopped")], "outcome": 0.0},
        {"left_out_messages": 4, "left_out_tokens": 100, "outcome": 1.0},
    )


def test_the_report_says_what_each_action_brought(report: GuidanceReport) -> None:
    refine, stop = report.actions
    assert (refine.q_model, refine.action, refine.steps, refine.episodes) == (GUIDED, "refine", 2, 2)
    assert (refine.raised, refine.failed, refine.chosen) == (0.5, 0.5, 0.5)
    assert [refine.q_before, refine.q_after] == pytest.approx([0.2, 0.5])
    assert (refine.tokens, refine.mean_outcome) == (20, 0.5)
    assert (stop.action, stop.steps, stop.chosen, stop.mean_outcome) == ("stop", 1, None, 0.0)


def test_the_report_counts_steps_with_a_window(report: GuidanceReport) -> None:
    assert report.agreement.windows == 1


def test_both_outputs_have_the_table_only_where_there_were_actions(report: GuidanceReport, tmp_path: Path) -> None:
    shown = io.StringIO()
    print_report(report, Console(file=shown, width=120))
    assert "below the threshold" in shown.getvalue()
    assert "shop@v1: refine" in html_of(report)
    folder = tmp_path / "plain"
    folder.mkdir()
    assert "below the threshold" not in html_of(report_of(folder, {"outcome": 1.0}, {"outcome": 0.0}))
