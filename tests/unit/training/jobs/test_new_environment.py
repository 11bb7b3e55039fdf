"""An environment from another package in every job: its chat format, rewards and criterion."""

from pathlib import Path

import pytest
from rich.console import Console

from qguide.qnet.records import TreeRow
from qguide.training.data.decision_groups import decisions_of, read_groups
from qguide.training.data.records import tree_from_row
from qguide.training.data.runs import read_rows
from qguide.training.data.trajectories import read_trajectories
from qguide.training.environments.registry import environment_config
from qguide.training.evaluation.choice_regret import ScoredEpisodeRow
from qguide.training.evaluation.records import EpisodeRow
from qguide.training.exploration.decision_groups import Decisions
from qguide.training.exploration.tree_expansion import Exploration
from qguide.training.jobs.choice_regret import ChoiceRegretConfig, run_choice_regret
from qguide.training.jobs.collect import CollectConfig, run_collect
from qguide.training.jobs.evaluate import EvaluateConfig, run_evaluate
from qguide.training.jobs.explore import ExploreConfig, run_explore
from qguide.training.jobs.groups import GroupsConfig, run_groups
from qguide.training.jobs.label import LabelConfig, run_label
from tests.support.counting import NAME, SYSTEM, CountingPolicy, LikesProgress

TABLE = environment_config({"name": NAME})
QUIET = Console(quiet=True)


def test_an_expert_that_is_cut_off_succeeds_by_the_environments_criterion(tmp_path: Path) -> None:
    collected = run_collect(CollectConfig(output=tmp_path, environment=TABLE, max_steps=3), console=QUIET)
    rows = {row.task_id: row for row in read_trajectories(tmp_path / "rows.jsonl")}
    assert (collected["episodes"], collected["won"]) == (3, 2)
    assert {task: row.reward for task, row in rows.items()} == {"to 4": 0.75, "to 5": 0.6}
    assert not any(row.terminated for row in rows.values())
    assert {row.messages[0].content for row in rows.values()} == {SYSTEM}
    assert [step.reward for step in rows["to 4"].steps] == [0.0, 0.0, 0.75]


def test_a_tree_holds_the_outcome_of_a_branch_on_its_last_node_alone(tmp_path: Path) -> None:
    exploration = Exploration(max_steps=3, max_draws=6, depth=2)
    config = ExploreConfig(output=tmp_path / "trees", environment=TABLE, exploration=exploration)
    run_explore(config, policy=CountingPolicy(), console=QUIET)
    rows = list(read_rows(tmp_path / "trees" / "rows.jsonl", TreeRow))
    assert {row.system for row in rows} == {SYSTEM}
    assert {row.environment for row in rows} == {NAME}
    for row in rows:
        tree = tree_from_row(row)
        leaves = {leaf.id for leaf in tree.leaves()}
        assert any(tree.node(leaf).step.reward > 0 for leaf in leaves)
        assert all(node.step.reward == 0 for node in tree.nodes if node.id not in leaves)
    run_label(LabelConfig(trees=(tmp_path / "trees",), output=tmp_path / "labels"))
    labels = list(read_rows(tmp_path / "labels" / "rows.jsonl", TreeRow))
    assert {row.system for row in labels} == {SYSTEM}


def test_an_evaluation_counts_what_the_environment_calls_success(tmp_path: Path) -> None:
    config = EvaluateConfig(output=tmp_path, environment=TABLE, seeds=(0,), methods=("greedy", "q-guided"), max_steps=3)
    results = run_evaluate(config, policy=CountingPolicy(), scorer=LikesProgress(), console=QUIET)
    greedy = next(row for row in results.rows if row.method == "greedy")
    assert greedy.success_rate == pytest.approx(2 / 3)  # 3 of 4 and 3 of 5, but not 3 of 6
    assert greedy.mean_reward == pytest.approx((3 / 4 + 3 / 5 + 3 / 6) / 3)
    episodes = list(read_rows(tmp_path / "episodes.jsonl", EpisodeRow))
    assert not any(episode.terminated for episode in episodes)


def test_choice_regret_and_groups_speak_its_format(tmp_path: Path) -> None:
    groups = GroupsConfig(output=tmp_path / "groups", environment=TABLE, decisions=Decisions(max_steps=3, horizon=9))
    run_groups(groups, policy=CountingPolicy(), console=QUIET)
    played = list(read_groups(tmp_path / "groups" / "rows.jsonl"))
    assert {row.system for row in played} == {SYSTEM}
    assert all(
        continuation.outcome_reward == 1.0
        for row in played
        for decision in decisions_of(row)
        for candidate in decision.candidates
        for continuation in candidate.rollouts
    )

    regret = ChoiceRegretConfig(output=tmp_path / "regret", groups=(tmp_path / "groups",), qnet="any")
    figures = run_choice_regret(regret, scorer=LikesProgress())
    rows = list(read_rows(tmp_path / "regret" / "rows.jsonl", ScoredEpisodeRow))
    assert any(False in decision.valid for row in rows for decision in row.decisions)
    assert figures["regret_steps"] == 0  # the highest number is the right one
