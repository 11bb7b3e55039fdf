"""Weights of a judge's criteria, from outcomes of episodes whose truth is known."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from qguide.qnet.records import OfferRow
from qguide.training.guidance_report.build import build_report
from qguide.training.guidance_report.schema import CriterionWeight, GuidanceReport
from qguide.training.guidance_report.tables import detail_tables
from tests.support.offers import offer, write_offers


def episodes(count: int, *, tasks: int = 10**6, outcome: float | None = None) -> Iterator[OfferRow]:
    """Success is likelier with progress alone; "format" is the same in all of them."""
    rng = random.Random(0)
    for number in range(count):
        progress, safety = rng.randint(0, 9), rng.randint(0, 9)
        won = float(rng.random() < progress / 9) if outcome is None else outcome
        verdicts = {"progress": progress, "safety": safety, "format": 9}
        chosen = {"content": "a1", "q_value": 0.8, "count": 1, "verdicts": verdicts}
        other = {"content": "a0", "q_value": 0.2, "count": 1, "verdicts": verdicts | {"format": 1}}
        yield offer(
            task=f"t{rng.randrange(tasks)}",
            outcome=won,
            episode=str(number),
            q_model="judge@judge-1",
            judge=True,
            candidates=[other, chosen],
        )


def report_of(folder: Path, rows: Iterator[OfferRow]) -> GuidanceReport:
    write_offers(folder, list(rows))
    return build_report([folder])


def by_name(report: GuidanceReport) -> dict[str, CriterionWeight]:
    return {one.criterion: one for one in report.criteria}


def test_the_criterion_that_tells_outcomes_has_the_weight(tmp_path: Path) -> None:
    report = report_of(tmp_path, episodes(600))
    found = by_name(report)
    progress, safety = found["progress"], found["safety"]
    assert progress.effect == pytest.approx(1.0, abs=0.1)
    assert progress.weight == 1.0
    assert progress.ci95
    assert progress.ci95[0] > 0.8
    assert safety.ci95
    assert safety.ci95[0] < 0 < safety.ci95[1]
    assert safety.weight is not None
    assert safety.weight < 0.15
    assert found["format"].effect is None, "its verdicts were always the same"
    [table] = [table for table in detail_tables(report) if table.title == "criteria of a judge"]
    assert table.rows[0][0] == "judge@judge-1: progress"


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (episodes(41), "41 episodes are too few for 3 criteria; record 19 more"),
        (episodes(60, tasks=4), "of too few tasks; record 6 more"),
        (episodes(60, outcome=1.0), "all outcomes are alike"),
    ],
)
def test_too_little_to_tell_gives_no_weights_and_says_what_is_missing(
    tmp_path: Path, rows: Iterator[OfferRow], why: str
) -> None:
    report = report_of(tmp_path, rows)
    assert {(one.effect, one.ci95, one.weight) for one in report.criteria} == {(None, None, None)}
    [sentence] = [one for one in report.sentences if "no weights" in one]
    assert sentence.endswith(why)
    assert sentence.startswith("no weights for the criteria of judge@judge-1: ")


def test_episodes_without_verdicts_have_no_table(tmp_path: Path) -> None:
    assert report_of(tmp_path, iter([offer()])).criteria == ()
