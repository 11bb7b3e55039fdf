"""The report's verdict: use it, do without it, take votes, or record more."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qguide.qnet.records import OfferRow
from qguide.training.guidance_report.build import build_report
from qguide.training.guidance_report.html_page import html_of
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
    control = (row.model_copy(update=guided | {"arm": "unguided"}) for row in episodes("one candidate", 0.5))
    report = report_of(tmp_path, learned, episodes("none@0", 0.5, count=50), control)

    assert [(arm.name, arm.episodes) for arm in report.arms] == [
        ("one candidate", 200),
        ("learned", 100),
        ("learned-1f0c66ab", 50),
        ("no Q model", 50),
        ("learned of +shop", 40),
    ]
    assert [one.arm for one in report.comparisons] == ["learned", "learned-1f0c66ab", "learned of +shop"]
    assert report.comparisons[2].difference is None
    assert report.comparisons[2].sentence.startswith(
        "learned of +shop cannot be compared here: there is no episode of one candidate in its group (+shop)"
    )
    assert report.verdict.startswith("use it: guidance by learned helps here")


def learning(group: str, *counts: tuple[int, int], trial: int = 1) -> Iterator[OfferRow]:
    """A group's guided and unguided episodes; of each the number, and how many succeed."""
    for arm, (count, successes) in zip(("guided", "unguided"), counts, strict=False):
        q_model = f"learned@{trial}-00000000" if arm == "guided" else "one candidate"
        for row in episodes(q_model, successes / count, count=count):
            more = {"task_id": f"{group}{arm}{row.task_id}", "episode": f"{group}{arm}{row.episode}"}
            yield row.model_copy(update={"arm": arm, "trial": trial, "trial_share": 0.5, "group": group, **more})


def test_groups_are_compared_within_and_pooled_as_strata(tmp_path: Path) -> None:
    # As by hand in the tests of `stratified_difference`, tenfold: +1/4 and +1/3, together 5/17; all in one is +5/12.
    report = report_of(tmp_path, learning("ada", (40, 30), (20, 10)), learning("+shop", (20, 10), (60, 10)))
    together, ada, shop = report.comparisons
    assert (together.arm, together.baseline) == ("learned of all groups", "one candidate")
    assert together.difference == pytest.approx(5 / 17)
    assert [(one.arm, one.episodes) for one in (ada, shop)] == [("learned of ada", 60), ("learned of +shop", 80)]
    assert [ada.difference, shop.difference] == pytest.approx([1 / 4, 1 / 3])
    assert "140 episodes of 2 groups, compared within each group and each phase of learning" in together.sentence
    assert report.verdict == f"use it: {together.sentence}"
    assert together.sentence in html_of(report)


def test_episodes_before_the_trial_are_not_what_guided_ones_are_compared_with(tmp_path: Path) -> None:
    # The agent has got better by itself since: before 10 % succeeded, in the trial half of both arms.
    before = episodes("one candidate", 0.1)
    report = report_of(tmp_path, before, learning("", (40, 20), (40, 20)))
    (found,) = report.comparisons
    assert (found.episodes, found.difference) == (80, 0.0)
    assert report.verdict.startswith("not shown to help")


def test_a_group_without_unguided_episodes_borrows_none(tmp_path: Path) -> None:
    report = report_of(tmp_path, learning("ada", (40, 30), (20, 10)), learning("bob", (100, 100)))
    together, *others = report.comparisons
    bob = next(one for one in others if one.arm == "learned of bob")
    assert (bob.difference, bob.ci95, bob.finding) == (None, None, "too_few")
    assert "in its group (bob) and phase of learning, and others say nothing about it" in bob.sentence
    assert together.difference == pytest.approx(1 / 4)
    assert (
        "60 episodes, compared within each phase of learning; bob left out, having no episode of one candidate"
        in together.sentence
    )

    alone = report_of(tmp_path, learning("bob", (100, 100)), learning("ada", (1, 1), (30, 10)))
    assert "use it" not in alone.verdict
