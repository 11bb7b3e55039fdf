"""The report's findings, on episodes whose truth is known."""

import io
import json
import random
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from qguide.cli import app
from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.records import OfferRow
from qguide.training.guidance_report.build import build_report
from qguide.training.guidance_report.html_page import html_of
from qguide.training.guidance_report.schema import GuidanceReport
from qguide.training.guidance_report.tables import print_report
from tests.support.offers import GUIDED, control, offer, write_offers


def episodes(
    count: int, success: float, *, seed: int = 0, guided: bool = True, tasks: int = 10**6
) -> Iterator[OfferRow]:
    """Episodes of one step with that rate of success; Q is high where they succeed."""
    rng = random.Random(seed)
    for number in range(count):
        outcome = float(number < count * success)
        name = f"{seed}-{number}"
        task = f"t{rng.randrange(tasks)}"
        if guided:
            q = 0.5 + 0.3 * outcome + rng.gauss(0, 0.1)
            yield offer(task=task, outcome=outcome, q_values=(0.1, q), episode=name)
        else:
            yield control(outcome, task=task, episode=name)


def report_of(folder: Path, *parts: Iterator[OfferRow], **more: Any) -> GuidanceReport:
    write_offers(folder, [row for part in parts for row in part])
    return build_report([folder], **more)


@pytest.mark.parametrize(
    ("guided", "plain", "finding", "words"),
    [
        (0.8, 0.4, "helps", "guidance by shop@v1 helps here"),
        (0.3, 0.7, "harms", "guidance by shop@v1 harms here"),
        (0.5, 0.5, "unclear", "cannot be told from chance here"),
    ],
)
def test_the_interval_decides_what_is_said(
    tmp_path: Path, guided: float, plain: float, finding: str, words: str
) -> None:
    report = report_of(tmp_path, episodes(100, guided), episodes(100, plain, seed=1, guided=False))
    (comparison,) = report.comparisons
    assert comparison.baseline == "one candidate"
    assert comparison.finding == finding
    assert comparison.difference == pytest.approx(guided - plain)
    assert words in report.sentences[0]
    assert "200 episodes" in report.sentences[0]
    trial = f"train on these episodes, then record {200 + (comparison.more_episodes or 0):,} more to judge again"
    assert (trial in report.model_dump_json()) == (finding == "harms")


def test_what_is_missing_for_five_points_is_reckoned(tmp_path: Path) -> None:
    report = report_of(tmp_path, episodes(200, 0.5), episodes(200, 0.5, seed=1, guided=False))
    (comparison,) = report.comparisons
    # Two arms of rate 1/2: 2 * (2.8 / 0.05)^2 / 4 episodes each, less the 400 there are.
    assert comparison.more_episodes == pytest.approx(3136 - 400, rel=0.1)
    assert f"{comparison.more_episodes:,} more are needed for a 5-point" in comparison.sentence


def test_repeated_episodes_of_few_tasks_are_no_evidence(tmp_path: Path) -> None:
    report = report_of(tmp_path, episodes(300, 0.8, tasks=5), episodes(300, 0.4, seed=1, guided=False, tasks=5))
    (comparison,) = report.comparisons
    assert (comparison.finding, comparison.ci95) == ("too_few", None)
    assert "fewer than 10 tasks (600 episodes); if your agent gets the same ones" in comparison.sentence


@pytest.mark.parametrize(("count", "finding"), [(150, "helps"), (19, "too_few")])
def test_episodes_of_the_same_tasks_are_evidence_of_these_if_the_agent_gets_no_others(
    count: int, finding: str, tmp_path: Path
) -> None:
    parts = episodes(count, 0.8, tasks=5), episodes(count, 0.4, seed=1, guided=False, tasks=5)
    report = report_of(tmp_path, *parts, same_tasks=True)
    (comparison,) = report.comparisons
    assert comparison.finding == finding
    assert f"{2 * count} episodes of these 5 tasks" in comparison.sentence
    assert [arm.tasks for arm in report.arms] == [5, 5]
    if finding == "helps":
        assert comparison.ci95 is not None
        low, high = comparison.ci95
        # The normal interval of a difference of two shares of 150 each.
        assert (high - low) / 2 == pytest.approx(1.96 * ((0.16 + 0.24) / 150) ** 0.5, rel=0.1)


def test_one_arm_alone_says_nothing_and_what_to_do(tmp_path: Path) -> None:
    report = report_of(tmp_path, episodes(50, 0.5))
    assert report.comparisons == ()
    assert "serve a split" in report.sentences[0]


def test_an_arm_of_unanimous_candidates_is_still_guided(tmp_path: Path) -> None:
    unanimous = offer(q_values=(None,), chosen=0, candidates=[{"content": "a0", "q_value": None, "count": 5}])
    report = report_of(tmp_path, iter([unanimous]))
    assert [arm.name for arm in report.arms] == [GUIDED]
    assert report.agreement.unanimous == 1.0


def test_another_baseline_may_be_named(tmp_path: Path) -> None:
    report = report_of(tmp_path, episodes(50, 0.5), episodes(50, 0.5, seed=1, guided=False), baseline=GUIDED)
    assert [one.arm for one in report.comparisons] == ["one candidate"]
    with pytest.raises(ConfigError, match=r"--baseline 'shop@v9' .*: .*|--baseline 'shop@v9' .* shop@v1, .*candidate"):
        build_report([tmp_path], baseline="shop@v9")


def test_q_that_ranks_outcomes_is_told_from_q_that_does_not(tmp_path: Path) -> None:
    (good,) = report_of(tmp_path, episodes(200, 0.5)).reliability
    assert good.auc is not None
    assert good.auc > 0.9
    assert "is higher in episodes that succeed" in good.sentence
    assert good.bins[0].mean_outcome < 0.5 < good.bins[-1].mean_outcome
    assert sum(part.steps for part in good.bins) == 200
    rng = random.Random(0)
    blind = (offer(task=f"t{i}", outcome=i % 2, q_values=(0.0, rng.random()), episode=str(i)) for i in range(200))
    (bad,) = report_of(tmp_path, blind).reliability
    assert "cannot be told from chance" in bad.sentence


def test_agreement_counts_first_and_most_frequent(tmp_path: Path) -> None:
    rare = [{"content": "a0", "q_value": 0.1, "count": 3}, {"content": "a1", "q_value": 0.2, "count": 1}]
    uncounted = [{"content": "a0", "q_value": 0.1}, {"content": "a1", "q_value": 0.7}]
    rows = [
        offer(1, q_values=(0.9, 0.1), chosen=0),
        offer(2, q_values=(0.1, 0.9, 0.2)),
        offer(3, candidates=rare),
        offer(4, candidates=uncounted, taken="something else"),
    ]
    found = report_of(tmp_path, iter(rows)).agreement
    assert (found.steps, found.with_choice) == (4, 4)
    assert found.argmax_is_first == 0.25
    assert found.first_by_chance == pytest.approx((0.5 + 1 / 3 + 0.5 + 0.5) / 4)
    assert found.argmax_is_most_frequent == pytest.approx(2 / 3)  # of those with counts
    assert found.followed == 0.75
    assert found.q_gain == pytest.approx((0 + 0.8 + 0.1 + 0.6) / 4)


def test_tokens_and_times_are_summed_by_episode_and_shown_by_step(tmp_path: Path) -> None:
    rows = [offer(i, completion_tokens=10 * i, duration_ms=4.0) for i in (1, 2)]
    report = report_of(tmp_path, iter(rows))
    (arm,) = report.arms
    assert (arm.tokens.mean, arm.ms.mean, arm.mean_steps) == (30, 8, 2)
    assert [(part.depths, part.tokens.median) for part in report.by_step] == [("1", 10), ("2", 20)]


def test_environments_are_compared_one_by_one(tmp_path: Path) -> None:
    def placed(place: str, success: float, *, guided: bool) -> Iterator[OfferRow]:
        for row in episodes(60, success, seed=int(guided), guided=guided):
            named = {"task_id": f"{place}-{row.task_id}", "episode": f"{place}-{row.episode}"}
            yield row.model_copy(update=named)

    parts = [
        placed("shop", 0.9, guided=True),
        placed("shop", 0.4, guided=False),
        placed("house", 0.3, guided=True),
        placed("house", 0.8, guided=False),
    ]
    rows = [row for part in parts for row in part]
    trees = ({"task_id": row.task_id, "system": row.task_id.split("-")[0], "environment": "served"} for row in rows)
    (tmp_path / "trees-1.jsonl").write_text("".join(json.dumps(tree) + "\n" for tree in trees))
    report = report_of(tmp_path, iter(rows))
    findings = {one.name: one.comparisons[0].finding for one in report.environments}
    assert findings == {"shop": "helps", "house": "harms"}
    assert 'harms in "house"' in " ".join(report.sentences)


def test_a_folder_without_any_episode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"offers-1\.jsonl .*/v1/episodes/ID/outcome"):
        report_of(tmp_path, iter(()))


class Tags(HTMLParser):
    """Collects the tags of a page and its texts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_loads_nothing_and_escapes_what_was_recorded(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>[bold]&"
    rows = [row.model_copy(update={"q_model": name}) for row in episodes(40, 0.5)]
    report = report_of(tmp_path, iter(rows), episodes(40, 0.5, seed=1, guided=False))
    page = Tags()
    page.feed(html_of(report))
    assert "script" not in page.tags
    assert page.links == []
    assert page.tags.count("svg") == 2
    assert f"guidance by {name} cannot be told" in page.text
    told = io.StringIO()
    print_report(report, Console(file=told, width=200))
    assert name in told.getvalue()


def test_the_command_writes_all_three(tmp_path: Path) -> None:
    write_offers(tmp_path, [*episodes(40, 0.9), *episodes(40, 0.1, seed=1, guided=False)])
    html, out = tmp_path / "report.html", tmp_path / "report.json"
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--html", str(html), "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "guidance by shop@v1 helps here" in result.output
    assert "helps here" in html.read_text()
    assert GuidanceReport.model_validate_json(out.read_bytes()).comparisons[0].finding == "helps"


def test_a_bad_row_ends_the_command_unless_it_may_be_left_out(tmp_path: Path) -> None:
    path = write_offers(tmp_path, [*episodes(3, 1.0)])
    path.write_text(path.read_text() + "{}\n")
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 1
    assert "line 4" in result.output
    skipped = CliRunner().invoke(app, ["report", str(tmp_path), "--skip-bad"])
    assert skipped.exit_code == 0
    assert "rows left out: 1" in skipped.output


def test_steps_outside_the_domain_are_counted_where_it_was_asked(tmp_path: Path) -> None:
    told = (offer(task=f"t{n}", episode=f"{n}", out_of_domain=n < 3) for n in range(12))
    agreement = report_of(tmp_path, told, episodes(20, 0.5, seed=1)).agreement

    assert (agreement.out_of_domain, agreement.domain_asked) == (0.25, 12)


def test_episodes_under_a_shadow_are_counted_apart(tmp_path: Path) -> None:
    def told(count: int, first: int, **more: Any) -> Iterator[OfferRow]:
        for n in range(first, first + count):
            yield offer(task=f"t{n}", episode=f"{n}", duration_ms=float(first + 1), **more)

    report = report_of(tmp_path, told(4, 0, shadow="shop@v2"), told(6, 4, shadow=""), told(5, 10))

    (shadowed,) = report.shadows
    assert (shadowed.arm, shadowed.shadow, shadowed.episodes) == (GUIDED, "shop@v2", 4)
    assert shadowed.ms.mean == 1.0
    assert [arm.episodes for arm in report.arms] == [15]
    assert "shadow shop@v2" in html_of(report)


def test_it_says_why_guidance_may_help_and_its_q_be_at_chance(tmp_path: Path) -> None:
    def guided() -> Iterator[OfferRow]:
        for n in range(200):
            name = f"t{n}"
            yield offer(task=name, episode=name, outcome=float(n < 180), q_values=(0, n % 2 + 1))

    report = report_of(tmp_path, guided(), episodes(200, 0.1, seed=1, guided=False))

    assert [comparison.finding for comparison in report.comparisons] == ["helps"]
    assert report.sentences[-1].startswith("both may be true")
