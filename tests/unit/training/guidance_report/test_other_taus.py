"""Other temperatures: known only where another episode made their choice in the same state."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from qguide.qnet.records import OfferRow
from qguide.training.guidance_report.build import build_report
from qguide.training.guidance_report.schema import GuidanceReport, TauEstimate
from tests.support.offers import GUIDED, offer, write_offers

COUNTS = [{"content": "a0", "q_value": 0.5, "count": 4}, {"content": "a1", "q_value": 0.6, "count": 1}]
"""Q prefers a1, and votes a0: from tau 0.083 on, the posterior does, too."""


def episodes(tasks: int, *, q_wins: float, votes_win: float, arm: str) -> Iterator[OfferRow]:
    """Each task once by Q and once by the other arm, which takes what the votes say."""
    for number in range(tasks):
        task = f"t{number}"
        yield offer(task=task, outcome=q_wins, episode=f"q{number}", candidates=COUNTS)
        yield offer(
            task=task,
            outcome=votes_win,
            episode=f"v{number}",
            candidates=[COUNTS[0] | {"q_value": None}],
            chosen=0,
            q_model=arm,
        )


def report_of(folder: Path, rows: Iterator[OfferRow]) -> GuidanceReport:
    write_offers(folder, list(rows))
    return build_report([folder])


def by_tau(report: GuidanceReport) -> dict[float | None, TauEstimate]:
    return {one.tau: one for one in report.other_taus if one.q_model == GUIDED}


def test_a_tau_that_chooses_alike_changes_nothing(tmp_path: Path) -> None:
    found = by_tau(report_of(tmp_path, episodes(12, q_wins=1, votes_win=0, arm="plain@0")))

    assert (found[0.03].decisions, found[0.03].changed, found[0.03].difference) == (12, 0, None)


def test_another_choice_has_the_outcome_of_the_episodes_that_made_it(tmp_path: Path) -> None:
    found = by_tau(report_of(tmp_path, episodes(12, q_wins=0.75, votes_win=0.5, arm="plain@0")))

    assert (found[0.1].changed, found[0.1].known, found[0.1].tasks) == (12, 12, 12)
    assert found[0.1].difference == pytest.approx(-0.25)
    assert found[None].ci95 == pytest.approx((-0.25, -0.25))


def test_a_choice_that_nobody_made_is_unknown(tmp_path: Path) -> None:
    alone = (offer(task=f"t{n}", episode=f"{n}", candidates=COUNTS) for n in range(12))
    found = by_tau(report_of(tmp_path, alone))

    assert (found[None].changed, found[None].known, found[None].difference) == (12, 0, None)


def test_another_state_of_the_task_is_another_decision(tmp_path: Path) -> None:
    def rows() -> Iterator[OfferRow]:
        yield offer(1, episode="a", candidates=COUNTS)
        yield offer(2, episode="a", candidates=COUNTS)
        yield offer(1, episode="b", candidates=COUNTS[:1], chosen=0, outcome=0.0)

    found = by_tau(report_of(tmp_path, rows()))

    assert (found[None].decisions, found[None].known) == (2, 1)


def test_votes_that_led_to_more_are_the_verdict(tmp_path: Path) -> None:
    rows = [*episodes(30, q_wins=0, votes_win=1, arm="none@0")]

    verdict = report_of(tmp_path, iter(rows)).verdict

    assert verdict.startswith("votes would have done as well, by an estimate: where Q chose")
    assert "+1.000 in outcome" in verdict
