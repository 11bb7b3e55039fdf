"""The best of several Q models by held-back decisions in which echoing the asked color ends well."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console

from qguide.qnet.errors import ConfigError, HistoryTooLongError, RecordError
from qguide.qnet.models.manifest import Manifest, read_manifest, replace_manifest
from qguide.qnet.types import Message, ScoreRequest
from qguide.training.architecture import Architecture
from qguide.training.data.runs import JsonlWriter, open_run
from qguide.training.jobs.learn import LearnConfig, run_learn
from qguide.training.licence.choose import ChooseConfig, run_choose
from qguide.training.licence.verdict import show_manifest
from qguide.training.rollouts.models import Inference, build_scorer
from tests.support.decision_groups import candidate, groups_row
from tests.support.echo import groups_in, labels_in
from tests.support.tiny_models import save_features, save_policy, save_qnet

PAIRS = (("red", "blue"), ("green", "gray"))


@pytest.fixture
def learned(tmp_path: Path) -> Path:
    """A Q model that was learned without a network."""
    source = groups_in(tmp_path / "groups", range(40))
    run_learn(LearnConfig(source=(source,), output=tmp_path / "learned", salt="00ff", name="learned"))
    return tmp_path / "learned" / "checkpoint"


@pytest.fixture
def untrained(tmp_path: Path) -> Path:
    """A QNet of random weights."""
    return save_qnet(tmp_path / "qnet", save_policy(tmp_path / "policy", seed=1))


def chosen(tmp_path: Path, *checkpoints: Path, **fields: Any) -> Manifest:
    if "labels" not in fields:
        fields = {"groups": (groups_in(tmp_path / "held_back", range(90, 110)),)} | fields
    config = {"checkpoints": tuple(map(str, checkpoints)), "output": tmp_path / "chosen"} | fields
    return run_choose(ChooseConfig.model_validate(config), console=Console(quiet=True))


def test_the_one_of_the_lowest_regret_is_written_with_the_regret_of_all(
    learned: Path, untrained: Path, tmp_path: Path
) -> None:
    manifest = chosen(tmp_path, untrained, learned)

    assert manifest.kind == "features"
    regrets = {name: manifest.metrics[f"regret_of_{name}"] for name in ("tiny-q", "learned", "sum")}
    assert regrets["learned"] == 0 < regrets["tiny-q"]
    written = read_manifest(tmp_path / "chosen" / "checkpoint")
    assert written is not None
    assert (written.kind, written.name, written.licence) == ("features", "learned", manifest.licence)
    assert written.licence is not None
    assert written.licence.granted
    [by] = written.licence.judged_by
    assert (by.name, by.tasks, len(by.sha256)) == ("held_back", 20, 64)
    assert not (tmp_path / "chosen" / "sum").exists()
    with (console := Console(width=200)).capture() as shown:
        show_manifest(written, console)
    assert f"judged by held_back (20 tasks, sha256 {by.sha256[:12]})" in shown.get()


def groups_of(folder: Path, colors: Sequence[str], numbers: range, *, words: str = "") -> Path:
    """Decisions between the asked color and another one of these."""
    with open_run(folder, Architecture()) as run, JsonlWriter(run.rows) as rows:
        for number in numbers:
            asked = colors[number % len(colors)]
            pair = next(pair for pair in PAIRS if asked in pair)
            said = [candidate(f"Action: {one}", (float(one == asked), 1)) for one in pair]
            rows.write(groups_row((said, 0), task_id=f"t{number}", first_observation=f"Say {asked}. {words}"))
    return run.path


def test_a_sum_is_taken_where_it_is_better_than_each(tmp_path: Path) -> None:
    halves = []
    for pair in PAIRS:
        name, source = "-or-".join(pair), groups_of(tmp_path / pair[0], pair, range(40))
        run_learn(LearnConfig(source=(source,), output=tmp_path / name, salt="00ff", name=name))
        halves.append(tmp_path / name / "checkpoint")
    manifest = chosen(tmp_path, *halves, groups=(groups_of(tmp_path / "all", sum(PAIRS, ()), range(90, 130)),))

    regrets = [manifest.metrics[f"regret_of_{name}"] for name in ("red-or-blue", "green-or-gray", "sum")]
    assert regrets[2] == 0 < min(regrets[:2])
    assert (manifest.kind, manifest.name) == ("ensemble", "sum")
    assert manifest.licence is not None
    assert manifest.licence.granted
    [result] = build_scorer(str(tmp_path / "chosen" / "checkpoint"), Inference()).score(
        [ScoreRequest((Message("user", "Say gray."),), tuple(Message("assistant", f"Action: {c}") for c in PAIRS[1]))]
    )
    assert result.q_values[1] > result.q_values[0]


def test_siblings_of_recorded_trees_judge_where_there_are_no_groups(
    learned: Path, untrained: Path, tmp_path: Path
) -> None:
    before = read_manifest(learned)
    manifest = chosen(tmp_path, learned, untrained, labels=(labels_in(tmp_path / "labels", range(90, 120)),))

    assert before is not None
    assert (manifest.name, manifest.prior) == ("learned", before.prior)
    assert manifest.licence is not None
    assert manifest.licence.choosers["q"].regret == 0
    assert manifest.licence.tasks == 30


@pytest.mark.parametrize(("differing", "granted"), [(0, True), (7, True), (9, False)])
def test_a_licence_holds_even_if_the_choice_failed_in_all_tasks_whose_replays_differ(
    learned: Path, tmp_path: Path, differing: int, granted: bool
) -> None:
    """The gain is 0.4 in each of 20 tasks without any doubt, 8 together; in many others nothing can be chosen."""
    groups = groups_in(tmp_path / "held_back", range(90, 110))
    with JsonlWriter(groups / "rows.jsonl") as rows:
        for number in range(200, 260):
            same = [candidate(f"Action: {said}", (1.0, 1)) for said in PAIRS[0]]
            rows.write(groups_row((same, 0), task_id=f"t{number}", first_observation="Say anything."))
    (groups / "metrics.jsonl").write_text(f'{{"replays_differ": {differing}, "of_tasks": 100}}\n{{"rows')
    manifest = read_manifest(learned)
    assert manifest is not None
    replace_manifest(learned, manifest.model_copy(update={"licence": None}))
    licence = chosen(tmp_path, learned, groups=(groups,)).licence
    assert licence is not None
    assert licence.granted == granted
    assert licence.gain_interval[0] == pytest.approx(0.4)
    assert licence.tasks == 20
    told = f"{differing} of 100 tasks failed because replays differ"
    assert (told in licence.reason) == bool(differing)
    if differing:
        assert f"at worst its gains add up to {8 - differing:+.2f}" in licence.reason


def test_one_that_cannot_read_the_decisions_is_left_out(learned: Path, untrained: Path, tmp_path: Path) -> None:
    long = groups_of(tmp_path / "long", PAIRS[0], range(20), words="you see a desk " * 200)
    manifest = chosen(tmp_path, untrained, learned, groups=(long,))
    assert set(manifest.metrics) >= {"regret_of_learned"}
    assert not {"regret_of_sum", "regret_of_tiny-q"} & set(manifest.metrics)
    with pytest.raises(HistoryTooLongError):
        chosen(tmp_path, untrained, groups=(long,), output=tmp_path / "none")


def test_a_licence_by_whole_episodes_stays_if_these_decisions_show_a_gain_too(learned: Path, tmp_path: Path) -> None:
    before = read_manifest(learned)
    assert before is not None
    assert before.licence is not None
    assert before.licence.granted
    few = groups_in(tmp_path / "few", range(90, 93))
    kept = chosen(tmp_path, learned, groups=(few,)).licence
    assert kept is not None
    assert kept.granted
    assert kept.reason.startswith(f"as before, {before.licence.reason}; here its choice is not shown")

    harmed = chosen(tmp_path, learned, groups=(groups_asking(tmp_path / "wrong", PAIRS[0]),), output=tmp_path / "b")
    assert harmed.licence is not None
    assert not harmed.licence.granted


def groups_asking(folder: Path, pair: Sequence[str]) -> Path:
    """Decisions in which the asked color ends badly, and the agent draws the other one mostly."""
    with open_run(folder, Architecture()) as run, JsonlWriter(run.rows) as rows:
        for number in range(40):
            asked = pair[number % 2]
            said = [candidate(f"Action: {one}", (float(one != asked), 1), count=1 + 3 * (one != asked)) for one in pair]
            rows.write(groups_row((said, 0), task_id=f"w{number}", first_observation=f"Say {asked}."))
    return run.path


def test_networks_that_are_read_at_different_places_are_compared_without_a_sum(untrained: Path, tmp_path: Path) -> None:
    later = save_qnet(tmp_path / "later", tmp_path / "policy", reads_observation=True)
    manifest = chosen(tmp_path, untrained, later)
    assert {"regret_of_tiny-q-0", "regret_of_tiny-q-1"} <= manifest.metrics.keys()
    assert "regret_of_sum" not in manifest.metrics


def test_a_finished_choice_is_kept_until_it_is_made_again(learned: Path, tmp_path: Path) -> None:
    groups = groups_in(tmp_path / "own", range(90, 110))
    first = chosen(tmp_path, learned, groups=(groups,))
    groups.rename(tmp_path / "moved")
    with pytest.raises(RecordError):
        chosen(tmp_path, learned, groups=(groups,))
    assert read_manifest(tmp_path / "chosen" / "checkpoint") == first
    (tmp_path / "moved").rename(groups)
    assert chosen(tmp_path, learned, groups=(groups,)) == first
    assert len((tmp_path / "chosen" / "metrics.jsonl").read_text().splitlines()) == 1


def test_what_judges_nothing_is_refused(tmp_path: Path) -> None:
    features = save_features(tmp_path / "features")
    with pytest.raises(ValidationError, match=r"groups .*\[\] .*labels \[\];"):
        chosen(tmp_path, features, groups=())
    with open_run(tmp_path / "same", Architecture()) as run, JsonlWriter(run.rows) as rows:
        for number in range(3):
            rows.write(groups_row(([candidate("Action: red"), candidate("Action: blue")], 0), task_id=f"s{number}"))
    with pytest.raises(ConfigError, match=r"\bsame .*outcome, .*tasks"):
        chosen(tmp_path, features, groups=(run.path,))
    with open_run(tmp_path / "single", Architecture()) as run, JsonlWriter(run.rows) as rows:
        rows.write(groups_row(([candidate("Action: red")], 0), task_id="s"))
    with pytest.raises(ConfigError, match=r'\bsingle .*decisions\.draws.*branching is "none".*labels'):
        chosen(tmp_path, features, groups=(run.path,))
