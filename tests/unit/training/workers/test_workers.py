"""Jobs whose environments run in workers: the rows of one process, whatever is killed."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError
from rich.console import Console

from qguide.qnet.errors import CheckpointError, ConfigError, EnvironmentFailureError, HistoryTooLongError
from qguide.qnet.types import Message, SampleRequest, Sampling, ScoreRequest, ToolCall
from qguide.training.environment import SnapshotEnvironment, ToolEnvironment
from qguide.training.environments.corridor import Corridor, CorridorConfig
from qguide.training.environments.intercode_sql.bundle import InterCodeSqlToolsConfig, build_suite
from qguide.training.environments.registry import build_suite as build_any_suite
from qguide.training.environments.registry import environment_config
from qguide.training.jobs.collect import CollectConfig, run_collect
from qguide.training.jobs.evaluate import EvaluateConfig, run_evaluate
from qguide.training.jobs.explore import run_explore
from qguide.training.jobs.groups import GroupsConfig, run_groups
from qguide.training.processes.messages import WorkerLostError
from qguide.training.rollouts.harness import open_rollouts
from qguide.training.rollouts.models import EMBEDDED, Inference, build_policy, build_scorer
from qguide.training.rollouts.remote_models import RayPolicy, RayScorer
from qguide.training.workers.config import Workers
from qguide.training.workers.suite import move_to_workers
from tests.support.worker_jobs import HERE, POLICY, SUPPORT, explore, killing, lines, run, worker_processes

TREES = 200


@pytest.fixture(params=["processes", pytest.param("ray", marks=pytest.mark.slow)])
def executor(request: pytest.FixtureRequest) -> str:
    """Each executor, with what it needs; actors answer through the code of processes."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    return str(request.param)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The trees of one process."""
    return run(explore(tmp_path_factory.mktemp("alone"), environment=CorridorConfig(count=TREES)))


@pytest.mark.parametrize("executor", ["processes", "ray"], indirect=True)
def test_hundreds_of_trees_are_those_of_one_process_though_a_worker_dies_twice(
    tmp_path: Path, executor: str, alone: list[str]
) -> None:
    environment = CorridorConfig(count=TREES)
    workers = Workers.model_validate({"executor": executor, "count": 2})
    with killing(tmp_path / "workers/rows.jsonl", [TREES // 5, TREES // 2]) as killed:
        config = explore(tmp_path / "workers", environment=environment, workers=workers)
        spread = run(config)
    assert len(killed) == 2
    assert len(alone) == TREES
    assert spread == alone
    metrics = lines(config.output, "metrics.jsonl")
    assert not any("error" in line for line in metrics if "lost_workers" not in line)
    assert [json.loads(line)["lost_workers"] for line in metrics if "lost_workers" in line] == [2]


def test_every_job_plays_in_workers(tmp_path: Path, executor: str) -> None:
    common = {"environment": CorridorConfig(count=6), "parallel": 4}
    jobs: dict[str, Callable[[Path, Workers], list[str]]] = {
        "collect": lambda output, workers: _collect(output, workers, common),
        "groups": lambda output, workers: _groups(output, workers, common),
        "evaluate": lambda output, workers: _evaluate(output, workers, common),
    }
    for name, job in jobs.items():
        alone = job(tmp_path / f"{name}-alone", Workers())
        workers = Workers.model_validate({"executor": executor, "count": 1})
        assert job(tmp_path / f"{name}-workers", workers) == alone != [], name


def _collect(output: Path, workers: Workers, common: dict[str, Any]) -> list[str]:
    config = CollectConfig(output=output, workers=workers, player="policy", policy="embedded", only_won=False, **common)
    run_collect(config, policy=POLICY, console=Console(file=StringIO()))
    return lines(output)


def _groups(output: Path, workers: Workers, common: dict[str, Any]) -> list[str]:
    config = GroupsConfig.model_validate(
        {
            "output": output,
            "workers": workers,
            "continuation": {"by": "policy"},
            "decisions": {"max_steps": 4, "horizon": 6},
            **common,
        }
    )
    run_groups(config, policy=POLICY, console=Console(file=StringIO()))
    return lines(output)


def _evaluate(output: Path, workers: Workers, common: dict[str, Any]) -> list[str]:
    config = EvaluateConfig.model_validate(
        {"output": output, "workers": workers, "methods": ["greedy", "sample"], "max_steps": 12, **common}
    )
    run_evaluate(config, policy=POLICY, console=Console(file=StringIO()))
    return _untimed(output)


def _untimed(output: Path) -> list[str]:
    """Episodes without their times."""
    rows = [json.loads(line) for line in lines(output, "episodes.jsonl")]
    return [json.dumps({k: v for k, v in row.items() if not k.endswith("_s")}) for row in rows]


@pytest.mark.slow
def test_a_full_object_store_loses_nothing(tmp_path: Path, ray_cluster: None) -> None:
    import numpy as np
    import ray

    held = [ray.put(np.ones(1024**2)) for _ in range(30)]  # three times what it holds
    workers = Workers(executor="ray", count=2)
    environment = CorridorConfig(count=20)
    full = run(explore(tmp_path / "full", environment=environment, workers=workers))
    assert full == run(explore(tmp_path / "alone", environment=environment))
    del held


def test_two_workers_step_at_once(executor: str) -> None:
    """Told by the steps themselves, whose 50 ms overlap however busy the machine is."""
    config = environment_config({"name": f"{SUPPORT}:TIMED", "count": 4})
    workers = Workers.model_validate({"executor": executor, "count": 2, "cpus": 0.5})
    suite = build_any_suite(config)
    with closing(move_to_workers(suite, config, workers, replays=True)) as moved:
        episodes = [moved.make(task) for task in moved.tasks]
        for episode in episodes:
            episode.reset()
        with ThreadPoolExecutor(4) as threads:
            told = threads.map(lambda one: [one.step("look").observation for _ in range(10)], episodes)
            steps = [json.loads(observation) for observation in chain(*told)]
    assert len({step["process"] for step in steps}) == 2
    at_once = [
        step
        for step in steps
        if any(
            other["process"] != step["process"] and other["began"] < step["ended"] and step["began"] < other["ended"]
            for other in steps
        )
    ]
    assert len(at_once) >= len(steps) / 4


def test_neither_the_start_nor_other_steps_count_as_silence(executor: str) -> None:
    """Steps of 50 ms wait for one worker, the last ones longer than a step may take."""
    config = environment_config({"name": f"{SUPPORT}:TIMED", "count": 60})
    workers = Workers.model_validate({"executor": executor, "count": 1, "timeout_s": 2.5})
    with (
        closing(move_to_workers(build_any_suite(config), config, workers, replays=True)) as moved,
        ThreadPoolExecutor(60) as threads,
    ):
        episodes = [moved.make(task) for task in moved.tasks]
        list(threads.map(lambda one: one.reset(), episodes))
        told = list(threads.map(lambda one: one.step("look").observation, episodes))
        assert len({json.loads(step)["process"] for step in told}) == 1


@pytest.mark.parametrize(
    ("environment", "failure"),
    [
        ("UNPICKLABLE", r"snapshot .*tuple .*pickled .*workers\.executor to 'inline'"),
        ("UNLOADABLE", r"snapshot .*unpickled \(TypeError.*workers\.executor to 'inline'"),
    ],
)
def test_a_state_that_cannot_travel_fails_its_own_request(executor: str, environment: str, failure: str) -> None:
    config = environment_config({"name": f"{SUPPORT}:{environment}", "count": 1})
    workers = Workers.model_validate({"executor": executor, "count": 1})
    with closing(move_to_workers(build_any_suite(config), config, workers, replays=True)) as moved:
        episode = moved.make(moved.tasks[0])
        assert isinstance(episode, SnapshotEnvironment)
        episode.reset()
        with pytest.raises(EnvironmentFailureError, match=failure) as told:
            episode.snapshot()
        assert not isinstance(told.value, WorkerLostError)
        assert episode.step("look").observation


def test_more_actors_than_the_cluster_has_room_for_are_refused(ray_cluster: None) -> None:
    config = CorridorConfig(count=1)
    workers = Workers(executor="ray", count=3)
    with pytest.raises(ConfigError, match=r"workers\.count is 3 .* for 2: 2 CPUs"):
        move_to_workers(build_any_suite(config), config, workers, replays=True)
    workers = Workers(executor="ray", count=1, cpus=3)
    with pytest.raises(ConfigError, match=r"workers\.cpus 3 each, .* for 0: 2 CPUs"):
        move_to_workers(build_any_suite(config), config, workers, replays=True)


def test_tools_are_called_in_workers(executor: str) -> None:
    config = InterCodeSqlToolsConfig(count=2)
    workers = Workers.model_validate({"executor": executor, "count": 1})
    moved = move_to_workers(build_suite(config), config, workers, replays=True)
    episode = moved.make(moved.tasks[0])
    assert isinstance(episode, ToolEnvironment)
    assert not isinstance(episode, SnapshotEnvironment)
    episode.reset()
    answer = episode.call(ToolCall("execute_sql", '{"query": "SHOW TABLES"}'))
    assert "author" in answer.observation
    moved.close()
    moved.close()


def test_errors_of_environments_stay_what_they_are(executor: str) -> None:
    config = CorridorConfig(count=1)
    workers = Workers.model_validate({"executor": executor, "count": 1})
    moved = move_to_workers(build_any_suite(config), config, workers, replays=True)
    episode = moved.make(moved.tasks[0])
    with pytest.raises(EnvironmentFailureError, match=r"^corridor:0: .*reset"):
        episode.step("look")
    episode.reset()
    for action in Corridor.of_seed(0).solution():
        assert episode.step(action).valid
    with pytest.raises(EnvironmentFailureError, match=r"^step\('look'\): .*reset") as raised:
        episode.step("look")
    assert not isinstance(raised.value, WorkerLostError)
    episode.close()
    moved.close()


def test_a_worker_that_cannot_build_the_suite_says_why(tmp_path: Path, executor: str) -> None:
    (tmp_path / "tasks.json").write_text("[]")
    values = {"name": "intercode-sql", "tasks": tmp_path / "none.json", "databases": tmp_path}
    workers = Workers.model_validate({"executor": executor, "count": 1})
    good = build_any_suite(CorridorConfig(count=1))
    with pytest.raises(ConfigError, match=r"tasks = .*none\.json: "):
        move_to_workers(good, environment_config(values), workers, replays=True)


def models_in_actors(count: int = 2, **changes: Any) -> Workers:
    return Workers(
        executor="ray", count=1, cpus=0, policy_gpus=0, q_gpus=0, policy_actors=count, q_actors=count
    ).model_copy(update=changes)


def remote_policy(name: str = EMBEDDED, **changes: Any) -> RayPolicy:
    return RayPolicy(name, Inference(threads=1), CorridorConfig(count=1), models_in_actors(**changes))


@pytest.mark.slow
def test_trees_of_policies_in_actors_are_those_of_one_here(tmp_path: Path, ray_cluster: None) -> None:
    rows = []
    for parallel, workers in ((1, HERE), (2, models_in_actors(2))):
        config = explore(tmp_path / f"{parallel}", environment=CorridorConfig(count=4), workers=workers)
        # One tree at a time on each, because batches are put together as episodes come to need them.
        config = config.model_copy(update={"parallel": parallel, "inference": Inference(threads=1)})
        run_explore(config, console=Console(file=StringIO()))
        rows.append(lines(config.output))
    assert len(rows[0]) == 4
    assert rows[0] == rows[1]


@pytest.mark.slow
def test_episodes_guided_by_a_q_model_in_actors_are_those_of_one_here(tmp_path: Path, ray_cluster: None) -> None:
    def played(parallel: int, workers: Workers) -> list[dict[str, Any]]:
        config = EvaluateConfig.model_validate(
            {
                "output": tmp_path / f"{parallel}",
                "environment": CorridorConfig(count=4),
                "workers": workers,
                "parallel": parallel,
                "inference": Inference(threads=1),
                "methods": ["q-guided"],
                "seeds": [0],
                "max_steps": 6,
            }
        )
        run_evaluate(config, policy=POLICY, console=Console(file=StringIO()))
        # What several tasks begin with is read once by each actor.
        return [{**json.loads(row), "scored_tokens": None} for row in _untimed(config.output)]

    alone = played(1, HERE)
    assert len(alone) == 4
    assert played(2, models_in_actors(2, policy_actors=0)) == alone
    with pytest.raises(ConfigError, match=r"q_actors is 3 .*workers\.q_gpus 1 .* 0 GPUs"):
        played(3, models_in_actors(3, q_gpus=1))


@pytest.fixture(scope="module")
def scorer(ray_cluster: None) -> RayScorer:
    """A Q model in two actors, each of which loads torch and transformers at its start."""
    return RayScorer(EMBEDDED, Inference(threads=1), CorridorConfig(count=1), models_in_actors(2))


def test_a_history_goes_on_at_the_actor_that_has_its_beginning(scorer: RayScorer) -> None:
    here = build_scorer(EMBEDDED, Inference(threads=1))
    first = [(Message("user", f"You are in room {number}."),) for number in range(4)]
    later = [(*one, Message("assistant", "Action: look"), Message("user", "A door.")) for one in first]
    for histories in (first, later[:1] + later[2:], later):
        requests = [ScoreRequest(history, (Message("assistant", "Action: go left"),)) for history in histories]
        found, expected = scorer.score(requests), here.score(requests)
        assert [one.q_values[0] for one in found] == pytest.approx([one.q_values[0] for one in expected], abs=1e-4)
        assert [one.cached_tokens for one in found] == [one.cached_tokens for one in expected]


def test_histories_of_one_actor_are_divided_while_the_other_has_nothing_to_do(scorer: RayScorer) -> None:
    first = [(Message("user", f"Room {number} is dark."),) for number in range(8)]
    later = [(*one, Message("assistant", "Action: look"), Message("user", "A door.")) for one in first]

    def known(histories: Sequence[tuple[Message, ...]]) -> list[bool]:
        """For each history, if it was in the cache of the actor that it came to."""
        requests = [ScoreRequest(history, (Message("assistant", "Action: go left"),)) for history in histories]
        return [one.cached_tokens > 10 for one in scorer.score(requests)]

    known(first)
    on_one_actor = later[::2]
    assert known(on_one_actor) == [True, True, True, False]
    assert known(on_one_actor) == [True] * 4


@pytest.fixture(scope="module")
def policy(ray_cluster: None) -> RayPolicy:
    """A policy in an actor."""
    return remote_policy(policy_actors=1)


@pytest.mark.slow
def test_a_policy_that_an_actor_cannot_load_says_so(tmp_path: Path, ray_cluster: None) -> None:
    with pytest.raises(CheckpointError):
        remote_policy(str(tmp_path), policy_actors=1)


def test_errors_of_a_policy_in_an_actor_keep_their_class(policy: RayPolicy) -> None:
    with pytest.raises(HistoryTooLongError):
        policy.sample_batch([SampleRequest((Message("user", "go " * 50_000),), 1)])
    with pytest.raises(ConfigError, match=r"policy_actors is 2 with workers.policy_gpus 1 each, .* has 0 GPUs"):
        remote_policy(policy_gpus=1)


def test_a_policy_whose_actor_is_killed_draws_in_a_new_one_what_it_draws_here(policy: RayPolicy) -> None:
    here = build_policy(EMBEDDED, Inference(threads=1), CorridorConfig(count=1))
    history = (Message("user", "You are in the middle of a room."),)
    request = SampleRequest(history, 3, Sampling(seed=0))
    [first] = policy.sample_batch([request])
    assert len(first) == 3
    victims = worker_processes("ModelActor")
    assert victims
    for victim in victims:
        with suppress(psutil.NoSuchProcess):  # an earlier test's, which Ray has ended
            victim.kill()
            victim.wait(60)
    for [drawn] in (policy.sample_batch([request]), here.sample_batch([request])):
        assert [one.message for one in drawn] == [one.message for one in first]
        # Sums may be added up in another order in another process.
        assert [one.logprob for one in drawn] == pytest.approx([one.logprob for one in first], abs=1e-4)
    assert policy.name == here.name


def test_gpus_of_all_models_of_a_job_are_counted(
    tmp_path: Path, ray_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.cluster_resources", lambda: {"GPU": 2.0})
    monkeypatch.setattr("qguide.training.rollouts.remote_models._Replaced.ask", lambda *_: "a model on a GPU")
    workers = models_in_actors(1, policy_gpus=1, q_gpus=1.5)
    config = explore(tmp_path, environment=CorridorConfig(count=1), workers=workers)
    with open_rollouts("explore", config, console=Console(file=StringIO())) as rollouts:
        rollouts.build_policy(EMBEDDED)
        with pytest.raises(ConfigError, match=r"q_gpus 1\.5 .* 2 GPUs, .* 1;"):
            rollouts.build_scorer(EMBEDDED)

    monkeypatch.setattr("ray.cluster_resources", lambda: {"GPU": 3.0})
    seven = models_in_actors(q_actors=7, q_gpus=0.4)
    scorer = RayScorer(EMBEDDED, Inference(threads=1), CorridorConfig(count=1), seven, reserved_gpus=0.2)
    assert scorer.gpus + 0.2 > 3, "tenths are exact, so nothing is tested"


def test_a_policy_without_a_free_gpu_says_so(ray_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.cluster_resources", lambda: {"GPU": 1.0})  # which another one holds
    monkeypatch.setattr("qguide.training.rollouts.remote_models.START_S", 2.0)
    with pytest.raises(ConfigError, match=r"'embedded' .* 2 s: .* 1 GPUs"):
        remote_policy(policy_gpus=1, policy_actors=1)


@pytest.mark.parametrize("actors", ["policy_actors", "q_actors"])
def test_actors_of_models_and_an_address_are_rays(actors: str) -> None:
    with pytest.raises(ValidationError, match=r"policy_actors is \d, q_actors \d .*executor 'processes'; .*'ray'"):
        Workers.model_validate({"executor": "processes", actors: 1})
    with pytest.raises(ValidationError, match=r"address is 'auto' .*executor 'processes'; .*'ray'"):
        Workers(executor="processes", address="auto")
