"""Workers that die, stop or take their job with them: what is played again, and what fails."""

import json
import os
import signal
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.qnet.types import Candidate, SampleRequest
from qguide.training.environments.corridor import CorridorConfig
from qguide.training.environments.registry import build_suite as build_any_suite
from qguide.training.environments.registry import environment_config
from qguide.training.jobs.explore import ExploreConfig, run_explore
from qguide.training.processes.messages import MakeHost, Request, WorkerClosedError, WorkerLostError
from qguide.training.processes.worker import ProcessWorker
from qguide.training.workers.config import Workers
from qguide.training.workers.host import EnvironmentHost, spec_of
from qguide.training.workers.suite import move_to_workers
from tests.support.alone import fresh_process
from tests.support.worker_environments import GATE, make_no_host
from tests.support.worker_jobs import REPLIES, SUPPORT, explore, killing, lines, run, worker_processes


def explore_gated(config: str, gate: str) -> None:
    """An exploration whose workers wait for a file."""
    os.environ[GATE] = gate
    run_explore(
        ExploreConfig.model_validate_json(config), policy=ScriptedPolicy(REPLIES), console=Console(file=StringIO())
    )


def test_a_killed_job_leaves_no_worker_and_is_resumed(tmp_path: Path) -> None:
    """Task by task, up to the first one that waits for a file: three rows, whatever the timing."""
    environment = {"name": f"{SUPPORT}:GATED", "count": 12}
    config = explore(tmp_path / "run", environment=environment, workers=Workers(executor="processes"))
    alone = config.model_copy(update={"parallel": 1})
    gate = tmp_path / "gate"
    process = fresh_process(explore_gated, alone.model_dump_json(), str(gate))
    process.start()
    while len(lines(config.output)) < 3:
        time.sleep(0.05)
        assert process.is_alive()
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.join()
    gate.touch()
    assert len(workers) >= 2
    assert psutil.wait_procs(workers, timeout=60)[1] == []
    assert len(lines(config.output)) == 3
    resumed = run(config)
    assert resumed == run(explore(tmp_path / "alone", environment=environment))


def test_a_job_that_breaks_off_tells_the_workers_that_it_lost(tmp_path: Path) -> None:
    class Breaking(ScriptedPolicy):
        def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
            if len(lines(tmp_path)) > 60:
                raise RuntimeError("no memory")
            return super().sample_batch(requests)

    workers = Workers(executor="processes", count=2)
    config = explore(tmp_path, environment=CorridorConfig(count=300), workers=workers)
    with killing(tmp_path / "rows.jsonl", [5]), pytest.raises(RuntimeError, match="memory"):
        run_explore(config, policy=Breaking(REPLIES), console=Console(file=StringIO()))
    rows = map(json.loads, lines(tmp_path, "metrics.jsonl"))
    assert [row["lost_workers"] for row in rows if "lost_workers" in row] == [1]


def test_what_kills_every_worker_fails_its_own_task_alone(tmp_path: Path) -> None:
    environment = {"name": f"{SUPPORT}:DEADLY", "count": 8}
    workers = Workers(executor="processes", count=2)
    config = explore(tmp_path / "run", environment=environment, workers=workers)
    trees = run(config.model_copy(update={"parallel": 8}))  # many wait where one kills
    failed = [row for row in map(json.loads, lines(config.output, "metrics.jsonl")) if "error" in row]
    assert {row["task_id"] for row in failed} <= {f"corridor:{n}" for n in range(3, 8, 4)}
    assert failed
    assert all("3 workers were lost at action" in row["error"] for row in failed)
    assert len(trees) == 8 - len(failed)


def test_a_task_that_cannot_be_replayed_is_played_again(tmp_path: Path) -> None:
    environment = {"name": f"{SUPPORT}:UNREPEATABLE", "count": 30}
    workers = Workers(executor="processes", count=2)
    config = explore(tmp_path / "run", environment=environment, workers=workers)
    with killing(config.output / "rows.jsonl", [5]) as killed:
        trees = run(config)
    assert len(killed) == 1
    assert len(trees) == 30
    assert len({json.loads(tree)["task_id"] for tree in trees}) == 30


def test_an_action_that_kills_every_worker_costs_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[int]()

    def counted(make_host: MakeHost, *, timeout_s: float) -> ProcessWorker:
        worker = ProcessWorker(make_host, timeout_s=timeout_s)
        started.append(worker.pid)
        return worker

    monkeypatch.setattr("qguide.training.workers.suite.ProcessWorker", counted)
    environment = {"name": f"{SUPPORT}:DEADLY", "count": 4}  # the last one is deadly
    workers = Workers(executor="processes", count=1)
    config = explore(tmp_path / "run", environment=environment, workers=workers)
    trees = run(config.model_copy(update={"parallel": 1}))
    assert len(trees) == 3
    assert len(started) == 3


def test_a_silent_worker_is_replaced() -> None:
    config = environment_config({"name": f"{SUPPORT}:SLOW", "count": 1})
    suite = build_any_suite(config)
    workers = Workers(executor="processes", count=1, timeout_s=3)
    moved = move_to_workers(suite, config, workers, replays=True)
    episode = moved.make(moved.tasks[0])
    first = episode.reset()
    before = worker_processes()
    for process in before:
        process.send_signal(signal.SIGSTOP)
    assert "room" in episode.step("go right").observation
    assert first
    episode.close()
    moved.close()
    assert psutil.wait_procs(before, timeout=60)[1] == []


def test_a_large_request_to_a_stopped_worker_ends() -> None:
    make_host = partial(EnvironmentHost, spec_of(CorridorConfig(count=1)))
    with closing(ProcessWorker(make_host, timeout_s=2)) as worker:
        assert worker.ask(Request("abilities", ("corridor:0",))).error is None
        os.kill(worker.pid, signal.SIGSTOP)
        with pytest.raises(WorkerLostError, match=r"restore: .* 2 s \(.*status -9\)"):
            worker.ask(Request("restore", (0, bytes(5 * 1024**2))))
        with pytest.raises(WorkerClosedError):
            worker.ask(Request("abilities", ("corridor:0",)))


def test_a_worker_that_dies_of_an_error_is_lost_with_its_own_exit_status_and_traceback(
    capfd: pytest.CaptureFixture[str],
) -> None:
    told = r"during reset: it died \(exit status 1\)"
    with closing(ProcessWorker(make_no_host, timeout_s=60)) as worker, pytest.raises(WorkerLostError, match=told):
        worker.ask(Request("reset"))
    assert "ValueError: no host" in capfd.readouterr().err
