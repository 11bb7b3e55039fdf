"""A policy's own and guided episodes as data of sft, on the fake environment."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import PreTrainedModel

from qguide.qnet.models.checkpoint import load_policy
from qguide.qnet.records import TreeRow
from qguide.qnet.rendering.renderer import Renderer
from qguide.qnet.types import Message
from qguide.training.data.runs import read_rows
from qguide.training.data.trajectories import Trajectory, read_trajectories
from qguide.training.environments.corridor import CorridorConfig
from qguide.training.jobs.collect import CollectConfig, run_collect
from qguide.training.jobs.sft import Demonstration, sft_loss, sft_sequence
from tests.support.tiny_models import save_policy
from tests.unit.training.jobs.test_evaluate import QUIET, Patient, Wanderer, evaluate, rows_of


def collect(output: Path, *, guided: bool = False, **changes: object) -> dict[str, float]:
    values: dict[str, object] = {
        "output": output,
        "environment": CorridorConfig(count=8),
        "player": "policy",
        "policy": "wanderer",
        "max_steps": 12,
        **changes,
    }
    return run_collect(
        CollectConfig.model_validate(values), policy=Wanderer(), q_model=Patient() if guided else None, console=QUIET
    )


def trajectories_in(output: Path) -> list[Trajectory]:
    return list(read_trajectories(output / "rows.jsonl"))


def actions_of(row: Trajectory) -> tuple[str, ...]:
    return tuple(row.messages[i].text for i in row.replies)


def test_a_task_keeps_as_many_successes_as_it_may(tmp_path: Path) -> None:
    collected = collect(tmp_path, attempts=12, keep=3)
    rows = trajectories_in(tmp_path)
    per_task = Counter(row.task_id for row in rows)
    assert set(per_task.values()) >= {1, 3}
    assert max(per_task.values()) == 3
    assert collected["kept"] == len(rows) < collected["episodes"]
    assert all(row.reward == 1 for row in rows)
    assert collect(tmp_path, attempts=12, keep=3)["tasks"] == 0


def test_guided_episodes_are_those_of_an_evaluation(tmp_path: Path) -> None:
    collect(tmp_path / "rows", guided=True, qnet="patient", selection="argmax", candidates=4, only_won=False, seed=1)
    evaluate(tmp_path / "evaluation", methods=("q-guided",), seeds=(1,), candidates=4, greedy_candidate=False)
    evaluated = {row.task_id: row for row in rows_of(tmp_path / "evaluation")}
    rows = trajectories_in(tmp_path / "rows")
    written = {r.task_id: r for r in read_rows(tmp_path / "rows" / "rows.jsonl", TreeRow)}
    assert len(rows) == len(evaluated) == 8
    for row in rows:
        same = evaluated[row.task_id]
        assert actions_of(row) == same.actions
        assert (row.reward, row.terminated) == (same.reward, same.terminated)
        assert written[row.task_id].completion_tokens == same.completion_tokens


def test_some_guided_steps_take_a_random_candidate(tmp_path: Path) -> None:
    def actions(name: str, explored: float) -> list[tuple[str, ...]]:
        folder = tmp_path / name
        fields = {"qnet": "patient", "selection": "argmax", "candidates": 4, "only_won": False, "explored": explored}
        collect(folder, guided=True, **fields)
        return [actions_of(row) for row in trajectories_in(folder)]

    always, half, never = (actions(f"{share}", share) for share in (1.0, 0.5, 0.0))

    assert never != half != always
    assert never != always


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"explored": 0.3}, r"explored is 0\.3, .*qnet"),
        ({"keep": 3}, "keep is 3 .*attempts 1;"),
        ({"qnet": "q", "player": "expert"}, "player 'expert' .*player to 'policy'"),
        ({"qnet": "q", "temperature": 0.0}, r"player 'policy' .*temperature 0\.0; .*temperature .* 0,"),
    ],
)
def test_what_cannot_be_collected_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        collect(tmp_path, **changes)


GOOD = Demonstration((Message("user", "Say red."), Message("assistant", "Action: red")))
BAD = Demonstration((Message("user", "Say blue."), Message("assistant", "Action: green")))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Renderer]:
    folder = tmp_path_factory.mktemp("policy")
    save_policy(folder)
    loaded = load_policy(folder)
    return loaded.model, loaded.renderer


def gradients(
    policy: tuple[PreTrainedModel, Renderer], *episodes: Demonstration, observed: float = 0.0
) -> list[torch.Tensor]:
    """Gradients of the mean loss, as an optimizer step has them."""
    model, renderer = policy
    model.zero_grad()
    rows = [sft_sequence(renderer, e, observation_weight=observed) for e in episodes]
    loss = sft_loss(model, rows)
    (loss.total / loss.weight).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("observed", [0.0, 0.3])
def test_weight_0_leaves_an_episode_out_and_weight_2_counts_it_twice(
    policy: tuple[PreTrainedModel, Renderer], observed: float
) -> None:
    def of(*episodes: Demonstration) -> list[torch.Tensor]:
        return gradients(policy, *episodes, observed=observed)

    plain = of(GOOD, BAD)
    assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-6)
    assert_close(of(GOOD, BAD._replace(weight=0.0)), of(GOOD))
    twice = of(GOOD._replace(weight=2.0), BAD)
    assert_close(twice, of(GOOD, GOOD, BAD))
    with pytest.raises(AssertionError):
        assert_close(twice, plain)


def test_the_draws_of_guided_episodes_are_kept(tmp_path: Path) -> None:
    collect(tmp_path, guided=True, qnet="patient", selection="argmax", candidates=4, only_won=False)
    for row in trajectories_in(tmp_path):
        assert [sum(one.count for one in drawn) for drawn in row.drawn] == [4] * len(row.steps)
        assert {one.greedy for drawn in row.drawn for one in drawn} == {None}
        taken = [step.key for step in row.steps]
        offered = [{d.message.text for d in step.drawn} for step in row.steps]
        assert len(taken) == len(offered) == len(row.steps)


def test_greedy_replies_are_named_and_single_draws_tell_nothing(tmp_path: Path) -> None:
    collect(tmp_path / "greedy", temperature=0, only_won=False)
    collect(tmp_path / "drawn", temperature=0.7, only_won=False)
    greedy = trajectories_in(tmp_path / "greedy")
    assert {one.greedy for row in greedy for drawn in row.drawn for one in drawn} == {True}
    assert {row.drawn for row in trajectories_in(tmp_path / "drawn")} == {()}
