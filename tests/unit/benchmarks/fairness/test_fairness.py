"""`python -m benchmarks fairness` measures every scene on one server, each beside none."""

import json
from pathlib import Path
from random import Random
from typing import get_args

import pytest

from benchmarks.fairness.crowd import QUESTIONS, Scene
from benchmarks.fairness.fairness import ALONE, Endpoint, FairnessBench, fairness_bench, ratios_of
from benchmarks.measurement.measure import describe_machine
from benchmarks.measurement.records import FairnessRow, FairnessRun, Percentiles
from qguide.qnet.errors import ConfigError

pytestmark = pytest.mark.server


def row(scene: str, p95: float | None) -> FairnessRow:
    times = None if p95 is None else Percentiles(p50=1.0, p95=p95, p99=p95)
    return FairnessRow(scene=scene, errors={}, latency_ms=times)


def test_a_scene_is_told_as_a_multiple_of_the_wait_alone() -> None:
    rows = (row(ALONE, 20.0), row("megabytes", 50.0), row("batches", None))
    machine = describe_machine(device="cpu", threads=1)
    run = FairnessRun(complete=True, command="", machine=machine, clients=4, rows=rows)
    assert ratios_of(run) == {("score", ALONE): 1.0, ("score", "megabytes"): 2.5}
    assert ratios_of(run.model_copy(update={"rows": rows[1:]})) == {}


def test_no_two_requests_of_the_other_key_are_alike() -> None:
    for question in QUESTIONS.values():
        bodies = [json.dumps(question(Random(seed))) for seed in (1, 2)]
        assert bodies[0] != bodies[1]
    _, body = QUESTIONS["megabytes"](Random(1))
    assert 900_000 < len(body["messages"][0]["content"]) <= 1_000_000
    _, body = QUESTIONS["batches"](Random(1))
    assert len({json.dumps(item) for item in body["items"]}) == 64


@pytest.mark.parametrize(
    ("endpoints", "scenes"),
    [
        (("rerank",), ("draws",)),
        pytest.param(("score",), get_args(Scene), marks=pytest.mark.slow),
        pytest.param(("act",), ("draws",), marks=pytest.mark.slow),
    ],
)
def test_every_scene_is_measured_and_kept(
    tmp_path: Path, endpoints: tuple[Endpoint, ...], scenes: tuple[Scene, ...]
) -> None:
    config = FairnessBench(
        output=tmp_path / "fairness.json", seconds=0.1, warm_up_s=0.0, clients=1, endpoints=endpoints, scenes=scenes
    )
    told: list[str] = []
    run = fairness_bench(config, advance=told.append)
    assert told == [f"{row.endpoint}, {row.scene}" for row in run.rows]
    assert told == [f"{endpoint}, {scene}" for endpoint in endpoints for scene in (ALONE, *scenes)]
    assert run.complete
    assert run == FairnessRun.model_validate_json(config.output.read_text())
    assert all(row.latency_ms and not row.errors for row in run.rows)


def test_a_server_that_does_not_start_is_an_error_and_the_run_is_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QGUIDE_MAX_CANDIDATES", "many")
    config = FairnessBench(output=tmp_path / "fairness.json")
    with pytest.raises(ConfigError, match="qguide serve"):
        fairness_bench(config)
    assert not FairnessRun.model_validate_json(config.output.read_text()).complete
