"""The explore job on corridors, with a policy that wanders."""

import json
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from rich.console import Console

from qguide.qnet.device.local_policy import LocalPolicy
from qguide.qnet.errors import ConfigError, EnvironmentFailureError, HistoryTooLongError
from qguide.qnet.models.checkpoint import save_checkpoint
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.records import ROOT_ID, TreeRow
from qguide.qnet.types import Candidate, Message, SampleRequest
from qguide.training.algorithms.tree import EXPERT
from qguide.training.data.records import tree_from_row
from qguide.training.data.runs import JsonlWriter, read_rows
from qguide.training.data.trajectories import Trajectory
from qguide.training.environments.alfworld.bundle import AlfWorldConfig
from qguide.training.environments.corridor import Corridor, CorridorConfig, CorridorEnvironment
from qguide.training.exploration.mcts import Mcts
from qguide.training.exploration.tree_expansion import Exploration
from qguide.training.jobs.explore import ExploreConfig, run_explore
from qguide.training.trajectory import react_reply
from tests.support.tiny_models import policy_model
from tests.support.wanderer import Wanderer


def configure(output: Path, *, count: int = 6, **changes: object) -> ExploreConfig:
    values: dict[str, object] = {
        "output": output,
        "environment": CorridorConfig(count=count),
        "exploration": Exploration(max_steps=12, max_draws=12, depth=4),
        "parallel": 4,
    }
    return ExploreConfig.model_validate(values | changes)


def explore(config: ExploreConfig, policy: Wanderer | None = None) -> list[TreeRow]:
    run_explore(config, policy=policy or Wanderer(), console=Console(file=StringIO()))
    return sorted(read_rows(config.output / "rows.jsonl", TreeRow), key=lambda row: row.task_id)


def search(output: Path, *, parallel: int = 4) -> list[TreeRow]:
    mcts = Mcts(iterations=8, width=3, max_steps=6)
    config = configure(output, strategy="mcts", mcts=mcts, parallel=parallel)
    run_explore(config, policy=Wanderer(), console=Console(file=StringIO()))
    return sorted(read_rows(output / "rows.jsonl", TreeRow), key=lambda row: row.task_id)


def test_a_search_writes_its_counts_and_values_whatever_runs_beside_it(tmp_path: Path) -> None:
    rows = search(tmp_path / "side_by_side")
    assert rows == search(tmp_path / "alone", parallel=1)
    assert len(rows) == 6
    for row in rows:
        of_root = zip(row.nodes, row.values["visits"], strict=True)
        visits = sum(count or 0 for node, count in of_root if node.parent == ROOT_ID)
        won = any(node.reward == 1 for node in row.nodes)
        # Eight iterations evaluate up to three new children each.
        assert 1 <= visits <= 24 if won else 8 <= visits <= 24
        assert all(-1 <= value <= 1 for value in row.values["mcts"] if value is not None)


def test_a_search_takes_no_guide(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"strategy is 'mcts', .*guide, rollouts .*expert"):
        configure(tmp_path, strategy="mcts", guide="embedded")


def solve(seed: int) -> Trajectory:
    corridor = Corridor.of_seed(seed)
    environment = CorridorEnvironment(corridor)
    messages, result = [Message("user", environment.reset())], None
    for action in corridor.solution():
        result = environment.step(action)
        messages += [Message("assistant", react_reply("", action)), Message("user", result.observation)]
    assert result is not None
    return Trajectory(
        task_id=f"corridor:{seed}",
        kind=corridor.kind,
        environment="fake",
        messages=tuple(messages),
        reward=result.reward,
        terminated=result.terminated,
        source=EXPERT,
    )


def test_every_task_gets_a_tree_that_really_branches(tmp_path: Path) -> None:
    rows = explore(configure(tmp_path))
    assert [row.task_id for row in rows] == [f"corridor:{seed}" for seed in range(6)]
    assert all(len(tree_from_row(row).children[0]) == 2 for row in rows)
    assert {row.environment for row in rows} == {"fake"}


def test_trees_do_not_depend_on_how_many_grow_at_once(tmp_path: Path) -> None:
    alone = explore(configure(tmp_path / "alone", parallel=1))
    together = explore(configure(tmp_path / "together", parallel=6))
    assert alone == together


def test_another_seed_explores_otherwise(tmp_path: Path) -> None:
    one = explore(configure(tmp_path / "one", seed=1))
    assert one != explore(configure(tmp_path / "two", seed=2))


def test_a_killed_run_is_resumed_without_losing_or_repeating_a_task(tmp_path: Path) -> None:
    undisturbed = Wanderer()
    whole = explore(configure(tmp_path / "whole", parallel=2), undisturbed)
    config = configure(tmp_path / "killed", parallel=2)
    with pytest.raises(KeyboardInterrupt):
        explore(config, Wanderer(dies_after=undisturbed.calls // 2))
    before = list(read_rows(tmp_path / "killed" / "rows.jsonl", TreeRow))
    assert 0 < len(before) < len(whole)
    with (tmp_path / "killed" / "rows.jsonl").open("ab") as file:
        file.write(b'{"task_id": "corr')
    assert explore(config) == whole


def test_a_finished_run_draws_nothing_more(tmp_path: Path) -> None:
    explore(configure(tmp_path))
    policy = Wanderer()
    explore(configure(tmp_path), policy)
    assert policy.calls == 0


def test_a_resume_with_another_tree_shape_is_refused(tmp_path: Path) -> None:
    explore(configure(tmp_path))
    with pytest.raises(ConfigError, match=r"; exploration\.width was 2 .* 3;"):
        explore(configure(tmp_path, exploration=Exploration(width=3, max_steps=12, max_draws=12)))


def test_the_experts_trajectory_is_in_its_tree(tmp_path: Path) -> None:
    with JsonlWriter(tmp_path / "expert" / "rows.jsonl") as writer:
        for seed in range(6):
            writer.write(solve(seed).to_row())
    rows = explore(configure(tmp_path / "trees", expert=(tmp_path / "expert",)))
    for row in rows:
        tree = tree_from_row(row)
        solution = Corridor.of_seed(int(row.task_id.split(":")[1])).solution()
        actions = [
            [node.step.action.removeprefix("Thought: \nAction: ") for node in tree.path(leaf.id)]
            for leaf in tree.leaves()
            if leaf.step.reward == 1.0
        ]
        assert solution in actions


def test_an_experts_mistakes_stay_marked_in_its_tree(tmp_path: Path) -> None:
    with JsonlWriter(tmp_path / "expert" / "rows.jsonl") as writer:
        for seed in range(6):
            writer.write(replace(solve(seed), mistakes=(0,)).to_row())
    rows = explore(configure(tmp_path / "trees", expert=(tmp_path / "expert",)))
    assert {sum(node.mistake for node in row.nodes if node.source == "expert") for row in rows} <= {0, 1}
    assert any(node.mistake for row in rows for node in row.nodes)


def test_metrics_describe_every_tree_and_the_run(tmp_path: Path) -> None:
    rows = explore(configure(tmp_path))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    how, *trees, last = [json.loads(line) for line in lines]
    assert how["branching"] == "replay"
    assert {line["task_id"] for line in trees} == {row.task_id for row in rows}
    assert last["summary"]["nodes"] == sum(len(row.nodes) for row in rows)
    assert last["summary"]["draws"] == sum(row.draws for row in rows)
    assert 0.0 < last["summary"]["branching_fraction"] <= 1.0


def test_an_expert_of_other_games_fails_its_tasks_and_says_so(tmp_path: Path) -> None:
    foreign = replace(solve(1), task_id="corridor:0").to_row()
    with JsonlWriter(tmp_path / "expert" / "rows.jsonl") as writer:
        writer.write(foreign)
    config = configure(tmp_path / "trees", expert=(tmp_path / "expert",), count=1)
    with pytest.raises(EnvironmentFailureError, match=r"1 tasks .* corridor:0: .* 1 actions"):
        explore(config)


def test_a_policy_with_no_room_for_the_task_leaves_an_empty_tree(tmp_path: Path) -> None:
    class Cramped(Wanderer):
        def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
            raise HistoryTooLongError("history has 900 tokens; cramped takes 8")

    rows = explore(configure(tmp_path, count=1), Cramped())
    assert rows[0].nodes == ()
    assert rows[0].misses == 2


def test_a_transformers_policy_explores_the_same_tree_alone_and_in_a_batch(tmp_path: Path) -> None:
    def grow(name: str, parallel: int) -> list[TreeRow]:
        config = configure(
            tmp_path / name,
            count=3,
            parallel=parallel,
            exploration=Exploration(width=6, depth=0, max_steps=2, max_draws=2, max_tokens=24, temperature=5.0),
        )
        policy = LocalPolicy(policy_model(context=1024))
        run_explore(config, policy=policy, console=Console(file=StringIO()))
        rows = read_rows(config.output / "rows.jsonl", TreeRow)
        return sorted(rows, key=lambda row: row.task_id)

    together = grow("together", parallel=3)
    assert sum(len(row.nodes) for row in together) >= 3
    assert grow("alone", parallel=1) == together


def test_a_policy_trained_again_is_another_policy(tmp_path: Path) -> None:
    loaded = policy_model(context=512)
    config = configure(
        tmp_path / "trees",
        count=1,
        policy=str(tmp_path / "policy"),
        exploration=Exploration(max_steps=1, max_draws=1, max_tokens=4),
    )

    def save() -> None:
        save_checkpoint(
            tmp_path / "policy",
            model=loaded.model,
            tokenizer=loaded.renderer.tokenizer,
            manifest=Manifest(kind="policy", name="tiny"),
        )

    save()
    run_explore(config, console=Console(file=StringIO()))
    with torch.no_grad():
        next(loaded.model.parameters()).add_(1.0)
    save()
    with pytest.raises(ConfigError, match="policy_sha256"):
        run_explore(config, console=Console(file=StringIO()))


class Looker:
    """Looks around, whatever it sees."""

    name = "looker"

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        assert all(request.sampling.temperature != 0 for request in requests)
        return [[Candidate(Message("assistant", "Action: look"), 2)] * r.n for r in requests]


def test_an_expert_plays_on_after_a_policys_deviations(tmp_path: Path) -> None:
    config = configure(
        tmp_path,
        environment=AlfWorldConfig(count=2),
        exploration=Exploration(max_steps=60, max_draws=6, depth=30, greedy_rollout=True),
        rollouts="expert",
    )
    run_explore(config, policy=Looker(), console=Console(file=StringIO()))
    for row in read_rows(tmp_path / "rows.jsonl", TreeRow):
        tree = tree_from_row(row)
        assert all(leaf.step.reward == 1.0 for leaf in tree.leaves())
        looked = [node for node in tree.nodes if node.step.action == "Action: look"]
        assert looked
        assert all(len(tree.children[node.parent]) == 2 for node in looked)


def test_rollouts_by_another_policy_have_to_be_greedy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rollouts is 'expert' .*greedy_rollout to true"):
        configure(tmp_path, rollouts="expert")


def test_a_guide_needs_something_to_choose_among(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"guide is 'embedded' .*candidates to 2"):
        configure(tmp_path, guide="embedded", exploration=Exploration(candidates=1))


def test_a_guide_leads_the_way_from_which_a_tree_branches(tmp_path: Path) -> None:
    config = configure(
        tmp_path,
        environment=AlfWorldConfig(count=1),
        policy="embedded",
        guide="embedded",
        rollouts="expert",
        exploration=Exploration(
            max_steps=60,
            max_draws=8,
            depth=30,
            policy_prefix_steps=6,
            candidates=3,
            branch_temperature=2.0,
            greedy_rollout=True,
        ),
    )
    run_explore(config, console=Console(file=StringIO()))
    [row] = read_rows(tmp_path / "rows.jsonl", TreeRow)
    assert len(list(tree_from_row(row).leaves())) >= 2
