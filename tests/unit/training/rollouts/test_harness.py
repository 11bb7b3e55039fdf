"""The harness plays tasks without a row, keeps failures apart and locks the folder."""

import json
from collections.abc import Callable
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.training.data.runs import finished_task_ids
from qguide.training.environments.corridor import CorridorConfig
from qguide.training.jobs.collect import CollectConfig, run_collect
from qguide.training.jobs.explore import ExploreConfig, run_explore
from qguide.training.jobs.groups import GroupsConfig, run_groups
from qguide.training.rollouts import rollout
from qguide.training.rollouts.harness import PlayableTask, RolloutConfig, Rollouts, open_rollouts
from qguide.training.rollouts.method import MethodConfig
from qguide.training.rollouts.models import Inference
from qguide.training.rollouts.rollout import EnvironmentCall, RolloutTask


def config(output: Path, *, parallel: int = 2) -> RolloutConfig:
    return RolloutConfig(output=output, environment=CorridorConfig(count=4), parallel=parallel)


def play(output: Path, *, failing: str = "", weights: dict[str, str] | None = None, parallel: int = 2) -> Rollouts:
    """Reset each task once; returns the run."""
    with open_rollouts(
        "test", config(output, parallel=parallel), weights=weights, console=Console(quiet=True)
    ) as rollouts:

        def start(playable: PlayableTask) -> RolloutTask[None]:
            if playable.task.id == failing:
                raise EnvironmentFailureError("the engine is gone")
            environment: Any = yield EnvironmentCall(playable.make)
            first: str = yield EnvironmentCall(environment.reset)
            rollouts.write({"task_id": playable.task.id, "first": first})

        rollouts.play(start)
        return rollouts


def test_a_task_that_failed_is_tried_again_and_one_with_a_row_is_not(tmp_path: Path) -> None:
    broken = play(tmp_path, failing="corridor:2")
    assert [failure.task_id for failure in broken.failures] == ["corridor:2"]
    rows = (tmp_path / "rows.jsonl").read_text()
    assert finished_task_ids(tmp_path / "rows.jsonl") == {"corridor:0", "corridor:1", "corridor:3"}
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert metrics == [{"task_id": "corridor:2", "error": "the engine is gone"}]
    mended = play(tmp_path)
    assert mended.failures == []
    after = (tmp_path / "rows.jsonl").read_text()
    assert after.startswith(rows)
    assert len(after.splitlines()) == 4


def test_a_resumed_run_plays_failed_tasks_last(tmp_path: Path) -> None:
    play(tmp_path, failing="corridor:0", parallel=1)
    rows = tmp_path / "rows.jsonl"
    kept = [line for line in rows.read_text().splitlines(True) if "corridor:1" in line]
    rows.write_text("".join(kept))
    play(tmp_path, parallel=1)
    played = [json.loads(line)["task_id"] for line in rows.read_text().splitlines()]
    assert played == ["corridor:1", "corridor:2", "corridor:3", "corridor:0"]


def test_a_run_is_not_resumed_with_other_models(tmp_path: Path) -> None:
    play(tmp_path, weights={"policy_sha256": "a"})
    play(tmp_path, weights={"policy_sha256": "a"})
    with pytest.raises(ConfigError, match=r": policy_sha256 was 'a' .*'b';"):
        play(tmp_path, weights={"policy_sha256": "b"})


def served(**changes: object) -> Inference:
    """Inference settings with the served classifier "q"."""
    values = {"url": "http://127.0.0.1:1", "tokenizer": "q1"} | changes
    return Inference.model_validate({"classifiers": {"q": values}})


def open_with(output: Path, inference: Inference) -> None:
    changed = config(output).model_copy(update={"inference": inference})
    with open_rollouts("test", changed, console=Console(quiet=True)):
        pass


def test_a_run_is_resumed_on_another_device_or_another_server_of_its_classifier(tmp_path: Path) -> None:
    open_with(tmp_path, served())
    open_with(tmp_path, served().model_copy(update={"device": "cuda", "dtype": "bfloat16"}))
    open_with(tmp_path, served(url="https://other/v1", api_key_variable="KEY", timeout_s=1.0))


@pytest.mark.parametrize(("name", "value"), [("tokenizer", "q2"), ("max_tokens", 9)])
def test_a_run_is_not_resumed_with_another_classifier(tmp_path: Path, name: str, value: object) -> None:
    open_with(tmp_path, served())
    (tmp_path / "metrics.jsonl").write_text("{}\n")  # as if a task had been played
    with pytest.raises(ConfigError, match=rf"inference.classifiers.q.{name} was"):
        open_with(tmp_path, served(**{name: value}))


def test_everything_failing_is_an_error_with_the_first_cause(tmp_path: Path) -> None:
    rollouts = play(tmp_path, failing="corridor:0")
    rollouts.require_some(written=3)
    with pytest.raises(EnvironmentFailureError, match=r"1 tasks .*corridor:0: .*gone"):
        rollouts.require_some(written=0)


PLAYS: list[tuple[Callable[..., object], type[MethodConfig], dict[str, object]]] = [
    (run_explore, ExploreConfig, {"exploration": {"max_draws": 12}}),
    (run_collect, CollectConfig, {"player": "policy", "only_won": False, "attempts": 9, "keep": 9}),
    (run_groups, GroupsConfig, {"continuation": {"by": "policy"}, "decisions": {"max_steps": 4, "horizon": 4}}),
]


@pytest.mark.parametrize(("run", "config_of", "options"), PLAYS)
@pytest.mark.parametrize("limit", [{"calls": 50}, {"minutes": 0.5}])
def test_a_spent_budget_ends_a_job_at_the_next_episode_and_another_start_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[..., object],
    config_of: type[MethodConfig],
    options: dict[str, object],
    limit: dict[str, float],
) -> None:
    rows, said = tmp_path / "rows.jsonl", StringIO()
    values = {"output": tmp_path, "policy": "random", "environment": CorridorConfig(count=20), "parallel": 3}
    clock = count()  # each look at it takes a second
    with monkeypatch.context() as patch:
        patch.setattr(rollout, "perf_counter", lambda: float(next(clock)))
        run(config_of.model_validate(values | options | limit), console=Console(file=said, width=200))
    [(name, most)] = limit.items()
    assert f"ended by {name} = {most}; what is played is kept" in said.getvalue()
    before = rows.read_text()
    assert 0 < len(finished_task_ids(rows)) < 20
    run(config_of.model_validate(values | options), console=Console(quiet=True))
    assert rows.read_text().startswith(before)
    assert len(finished_task_ids(rows)) == 20
