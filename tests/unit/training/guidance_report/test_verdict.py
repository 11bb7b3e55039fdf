"""The report's verdict: use it, do without it, take votes, or record more."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qguide.qnet.records import OfferRow
from qguide.training.guidance_report.build import build_report
from qguide.training.guidance_report.schema import GuidanceReport
from tests.support.offers import GUIDED, control, offer, write_offers

COUNTS = [{"content": "a0", "q_value": 0.2, "count": 1}, {"content": "a1", "q_value": 0.8, "count": 4}]


def episodes(arm: str, success: float, *, count: int = 200, **more: Any) -> Iterator[OfferRow]:
    """Episodes of one step; every task of its own."""
    for number in range(count):
        outcome = float(number < success * count)
        name = f"{arm}-{number}"
        if arm == "one candidate":
            yield control(outcome, task=name, episode=name)
        else:
            yield offer(task=name, outcome=outcome, episode=name, q_model=arm, **more)


def report_of(folder: Path, *arms: Iterator[OfferRow]) -> GuidanceReport:
    write_offers(folder, [row for arm in arms for row in arm])
    return build_report([folder])


@pytest.mark.parametrize("plain", ["one candidate", "none@0"])
@pytest.mark.parametrize(
    ("success", "words"), [(0.9, "use it: "), (0.1, "do without it: "), (0.5, "not shown to help; record ")]
)
def test_the_comparison_with_unguided_episodes_decides(tmp_path: Path, success: float, words: str, plain: str) -> None:
    report = report_of(tmp_path, episodes(GUIDED, success), episodes(plain, 0.5))

    assert report.verdict.startswith(words)


def test_votes_that_were_tried_and_do_better_are_said(tmp_path: Path) -> None:
    arms = (episodes(GUIDED, 0.5), episodes("votes@0", 0.9), episodes("one candidate", 0.1))

    assert report_of(tmp_path, *arms).verdict.startswith("votes would have done as well: ")


def test_a_q_model_that_beats_votes_is_used(tmp_path: Path) -> None:
    arms = (episodes(GUIDED, 0.9), episodes("votes@0", 0.5), episodes("one candidate", 0.1))

    assert report_of(tmp_path, *arms).verdict.startswith("use it: ")


def test_choices_that_are_those_of_the_votes_need_no_second_arm(tmp_path: Path) -> None:
    arms = (episodes(GUIDED, 0.9, candidates=COUNTS), episodes("one candidate", 0.1))

    verdict = report_of(tmp_path, *arms).verdict
    assert verdict.startswith("votes would have done as well: at 100% of the steps with a choice")


def test_a_server_that_has_only_explored_has_no_verdict_and_then_one_on_what_it_learned(tmp_path: Path) -> None:
    unguided = [*episodes("one candidate", 0.5), *episodes("none@0", 0.5)]
    assert report_of(tmp_path, iter(unguided)).verdict == "no verdict: no episode was guided by a Q model"

    report = report_of(tmp_path, iter(unguided), episodes("learned@3", 0.9, count=50))
    assert report.verdict.startswith("use it: guidance by learned@3 ")


def test_guided_episodes_alone_give_no_verdict(tmp_path: Path) -> None:
    assert report_of(tmp_path, episodes(GUIDED, 0.9)).verdict.startswith("no verdict: ")


def test_trials_are_told_by_group_in_the_order_of_time_and_at_the_level_of_the_server(tmp_path: Path) -> None:
    def trial(outcomes: list[float], **more: Any) -> list[OfferRow]:
        arms = ("guided", "unguided")
        shared = {"trial": 1, "trial_share": 0.5} | more
        return [
            offer(outcome=outcome, arm=arms[n % 2], at=float(n), episode=f"{more['group']}{n}", **shared)
            for n, outcome in enumerate(outcomes)
        ]

    rose = [1.0, 0.0] * 30 + [1.0, 1.0] * 10
    rows = trial(rose, group="ada"), trial(rose, group="bob", alpha=0.5), trial(rose[::-1], group="cat")
    ada, bob, cat = report_of(tmp_path, *map(iter, rows)).trials
    assert [one.name for one in (ada, bob, cat)] == ["1 of ada", "1 of bob", "1 of cat"]
    assert (ada.guided, ada.unguided) == (bob.guided, bob.unguided)
    assert (ada.low, ada.high) not in [(bob.low, bob.high), (cat.low, cat.high)]

    mixed = [row for pair in zip(rows[0][40:], rows[0][:40], strict=True) for row in pair]
    assert report_of(tmp_path, iter(mixed)).trials == (ada,)


def test_steps_at_which_no_q_chose_are_counted(tmp_path: Path) -> None:
    inside = episodes(GUIDED, 0.9, count=30, reason="highest_q")
    outside = episodes("shop@v2", 0.9, count=10, reason="fallback", q_values=(None, None))

    assert report_of(tmp_path, inside, outside).agreement.fallback == 0.25


def test_all_versions_of_a_learner_are_one_arm_and_unguided_ones_are_no_guidance(tmp_path: Path) -> None:
    guided = {"arm": "guided", "trial": 1, "trial_share": 0.5}
    versions = [episodes(f"learned@{one}", 0.9, count=50) for one in ("1", "2", "3-1f0c66ab")]
    versions += [episodes(f"learned@{one}-5bee2f1d", 0.9, count=20, group="+shop") for one in (1, 2)]
    learned = (row.model_copy(update=guided) for version in versions for row in version)
    report = report_of(tmp_path, learned, episodes("none@0", 0.5, count=50), episodes("one candidate", 0.5))

    assert [(arm.name, arm.episodes) for arm in report.arms] == [
        ("one candidate", 200),
        ("learned", 100),
        ("learned-1f0c66ab", 50),
        ("none@0", 50),
        ("learned of +shop", 40),
    ]
    assert [one.arm for one in report.comparisons] == ["learned", "learned-1f0c66ab", "learned of +shop"]
    assert report.verdict.startswith("use it: guidance by learned helps here")
