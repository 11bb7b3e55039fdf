"""Branches where replays differ: by snapshots, or whole episodes only, which the job says."""

import json
import re
from io import StringIO
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.qnet.records import TreeRow
from qguide.training.data.decision_groups import decisions_of, read_groups
from qguide.training.data.left_out import left_out_of
from qguide.training.data.records import tree_from_row
from qguide.training.data.runs import read_rows
from qguide.training.environments.branches import SnapshotBranches, choose_branching
from qguide.training.environments.registry import build_selected_suite, environment_config
from qguide.training.exploration.decision_groups import Decisions
from qguide.training.exploration.tree_expansion import Exploration
from qguide.training.jobs.explore import ExploreConfig, run_explore
from qguide.training.jobs.groups import Continuation, GroupsConfig, run_groups
from qguide.training.jobs.label import LabelConfig, run_label
from qguide.training.jobs.rro import RroConfig, run_rro
from tests.support import own_environments
from tests.support.own_environments import RareLamp, UnsteadyLamp
from tests.support.presser import Presser

HERE = "tests.support.own_environments:"


def table(kind: str, **fields: object) -> Any:
    values = {"name": f"{HERE}{kind}", "count": 3, "reward_range": [0, 3], "harmless": "look"}
    return environment_config(values | fields)


def explore(
    output: Path, kind: str, *, calls: int | None = None, parallel: int = 64, **fields: object
) -> tuple[list[TreeRow], str]:
    """The trees of a kind of lamp, and what the job said."""
    shown = StringIO()
    run_explore(
        ExploreConfig(
            output=output,
            environment=table(kind, **fields),
            calls=calls,
            parallel=parallel,
            exploration=Exploration(max_steps=4, max_draws=5, depth=3, stop_on_zero=False),
        ),
        policy=Presser(),
        console=Console(file=shown, width=400),
    )
    return list(read_rows(output / "rows.jsonl", TreeRow)), shown.getvalue()


def branching_in(output: Path) -> list[str]:
    rows = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return [row["branching"] for row in rows if "branching" in row]


@pytest.mark.parametrize(
    ("kind", "branching"), [("GymLamp", "replay"), ("NoisyLamp", "none"), ("KeptLamp", "snapshot")]
)
def test_the_self_check_finds_how_branches_can_begin(kind: str, branching: str) -> None:
    choice = choose_branching(build_selected_suite(table(kind)))
    assert choice.branching == branching
    if branching != "replay":
        assert "after the same 1 actions, the answers are" in choice.reason
    said = choose_branching(build_selected_suite(table(kind, branching="none")))
    assert (said.branching, said.reason) == ("none", "the configuration says so")


def test_chance_that_one_pair_of_episodes_does_not_show_is_found_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """A die that falls equally nine times of ten, or an environment that takes its time."""
    monkeypatch.setattr(RareLamp, "throws", count())
    suite = build_selected_suite(table("RareLamp", count=2))
    choice = choose_branching(suite)
    assert choice.branching == "none"
    assert "after the same 2 actions" in choice.reason
    monkeypatch.setattr("qguide.training.environments.branches.PROBING_S", 0.0)
    assert choose_branching(suite).reason == "3 actions replayed equally in 1 pair of episodes"


def test_equal_replays_grow_trees_without_a_word(tmp_path: Path) -> None:
    trees, shown = explore(tmp_path, "GymLamp")
    assert len(trees) == 3
    assert "snapshots" not in shown
    assert "whole episodes" not in shown
    assert branching_in(tmp_path) == ["replay"]


def test_a_resumed_run_branches_as_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, _ = explore(tmp_path, "UnsteadyLamp")
    (tmp_path / "rows.jsonl").write_text(f"{begun[0].model_dump_json()}\n")
    monkeypatch.setattr(UnsteadyLamp, "noisy", False)
    trees, shown = explore(tmp_path, "UnsteadyLamp")
    assert "explore: whole episodes only: after the same 1 actions" in shown
    assert branching_in(tmp_path) == ["none"]
    assert len(trees) == 3
    for tree in map(tree_from_row, trees):
        assert all(len(children) <= 1 for children in tree.children[1:])


def test_snapshots_grow_trees_where_replays_differ(tmp_path: Path) -> None:
    trees, shown = explore(tmp_path, "KeptLamp")
    assert "explore: branches restore snapshots: after the same 1 actions" in shown
    assert branching_in(tmp_path) == ["snapshot"]
    depths = [
        tree.depth(node_id)
        for tree in map(tree_from_row, trees)
        for node_id, children in enumerate(tree.children)
        if len(children) > 1
    ]
    assert max(depths) >= 1  # branches below the root
    for tree in map(tree_from_row, trees):
        for node in tree.nodes:
            lit = {s.step.action[-1] for s in tree.path(node.id) if "press" in s.step.action}
            shown_on = node.step.observation.removeprefix("On: ").partition(".")[0]
            assert set(shown_on.split(", ")) == (lit or {"none"})


def test_a_replay_that_ends_early_names_the_difference_and_the_job_its_bias(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_environments, "_noise", count())
    _, shown = explore(tmp_path, "LuckyLamp", branching="replay", count=12)
    rows = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    errors = [row["error"] for row in rows if "error" in row]
    assert errors
    assert any("'the end of the episode' instead of 'more of it'" in error for error in errors)
    for error in errors:
        assert re.search(r'differs after \d actions: .*branching = "snapshot" or "none"', error)
    assert f"{len(errors)} of 12 tasks failed" in shown
    assert left_out_of([tmp_path]) == left_out_of([tmp_path / "rows.jsonl"]) == (len(errors), 12)
    figures = run_label(LabelConfig(trees=(tmp_path,), output=tmp_path / "labels", max_reward=3, target="avg"))
    assert (figures["replays_differ"], figures["of_tasks"]) == left_out_of([tmp_path / "labels"]) == (len(errors), 12)

    monkeypatch.setattr(own_environments, "_noise", chain(range(20), repeat(0)))
    trees, _ = explore(tmp_path, "LuckyLamp", branching="replay", count=12)
    assert 12 - len(errors) < len(trees) < 12, "a later start fails again in some"
    assert left_out_of([tmp_path]).tasks == len(errors), "those that it plays to their ends count, too: it was luck"
    assert 'set branching to "snapshot" or "none"' in shown


def test_tasks_for_which_there_was_no_budget_are_not_among_those_of_which_some_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_environments, "_noise", count())
    trees, _ = explore(tmp_path, "LuckyLamp", calls=40, parallel=3, branching="replay", count=12)
    left_out = left_out_of([tmp_path])
    assert left_out.tasks > 0
    assert left_out.of == left_out.tasks + len(trees) < 12


def test_without_snapshots_only_whole_episodes_are_explored(tmp_path: Path) -> None:
    trees, shown = explore(tmp_path, "NoisyLamp")
    assert "explore: whole episodes only: after the same 1 actions" in shown
    for tree in map(tree_from_row, trees):
        assert len(tree.children[0]) == 2
        assert all(len(children) <= 1 for children in tree.children[1:])


def test_groups_value_by_snapshots_everything(tmp_path: Path) -> None:
    run_groups(
        GroupsConfig(
            output=tmp_path,
            environment=table("KeptLamp"),
            decisions=Decisions(max_steps=3, horizon=6),
            continuation=Continuation(by="policy"),
        ),
        policy=Presser(),
        console=Console(quiet=True),
    )
    assert max(len(decision.candidates) for row in read_groups(tmp_path) for decision in decisions_of(row)) >= 3


def test_jobs_that_cannot_do_without_branches_say_so_before_any_work_and_leave_their_folder_free(
    tmp_path: Path,
) -> None:
    config = RroConfig(output=tmp_path / "rro", environment=table("NoisyLamp"))
    with pytest.raises(ConfigError, match=r"rro .*NoisyLamp .* 1 actions, .*StepResult.*collect"):
        run_rro(config, policy=Presser(), console=Console(quiet=True))
    nowhere = GroupsConfig(
        output=tmp_path / "groups",
        environment=table("NoisyLamp"),
        policy=str(tmp_path / "made_later"),
        continuation=Continuation(by="policy"),
    )
    (tmp_path / "made_later").mkdir()
    with pytest.raises(ConfigError, match=r"groups .*NoisyLamp .* 1 actions, .*StepResult.*choose --labels"):
        run_groups(nowhere, console=Console(quiet=True))
    assert not (tmp_path / "groups/metrics.jsonl").read_text()
    search = ExploreConfig(output=tmp_path / "mcts", environment=table("NoisyLamp"), strategy="mcts")
    with pytest.raises(ConfigError, match=r"'mcts' .*expert .* strategy = 'expand'"):
        run_explore(search, policy=Presser(), console=Console(quiet=True))


def test_a_known_path_is_answered_from_its_records_and_left_by_a_snapshot() -> None:
    suite = build_selected_suite(table("KeptLamp"))
    branches = SnapshotBranches(lambda: suite.make(suite.tasks[0]))
    one, other = branches(), branches()
    assert one.reset() == other.reset()
    taken = [one.step(action) for action in ("press 1", "press 2")]
    assert [other.step("press 1"), other.step("press 2")] == taken
    left = other.step("press 3")
    assert left.terminated
    assert left.reward == pytest.approx(1.0)
    assert not one.step("look").ended
    for episode in (one, other):
        episode.close()
        episode.close()
    with pytest.raises(EnvironmentFailureError, match=r"^step\('look'\): .*reset"):
        branches().step("look")


def test_snapshots_that_an_environment_does_not_have_fail_the_task() -> None:
    suite = build_selected_suite(table("NoisyLamp"))
    with pytest.raises(EnvironmentFailureError, match=r'AdaptedEpisode .*snapshot .*restore; .*branching to "none"'):
        SnapshotBranches(lambda: suite.make(suite.tasks[0]))().reset()
