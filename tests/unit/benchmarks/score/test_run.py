"""The whole benchmark on a model of twenty thousand parameters."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.commands.app import app
from benchmarks.measurement.measure import least_flops
from benchmarks.measurement.names import LOCAL, NAMES, OF_MANY_SESSIONS
from benchmarks.measurement.records import Run
from benchmarks.measurement.shapes import SHAPES, Shape, build_qnet
from benchmarks.measurement.steps import OBSERVATION_TOKENS, Point, Step, draw_step
from benchmarks.score import run as run_module
from benchmarks.score.baselines import Naive, build_baselines
from benchmarks.score.config import ScoreBench
from benchmarks.score.report import plot_run, print_run
from benchmarks.score.run import count_turns, score_bench
from qguide.qnet.errors import ConfigError
from qguide.qnet.models.checkpoint import LoadedQNet
from tests.support.vllm_python import vllm_python

SHAPE = SHAPES["tiny"]
POINT = Point(40, 3, 8)


@pytest.fixture(scope="module")
def tiny() -> LoadedQNet:
    return build_qnet("tiny", SHAPE, seed=0, dtype=torch.float32, device="cpu")


def a_step(point: Point = POINT, *, seed: int = 0) -> Step:
    return draw_step(point, vocabulary=SHAPE.vocabulary, rng=Random(seed))


def a_config(folder: Path, **more: Any) -> ScoreBench:
    usual: dict[str, Any] = {
        "params": ("tiny",),
        "points": (POINT, Point(24, 1, 8)),
        "peers": LOCAL,
        "sessions": (1, 3),
        "dtype": "float32",
        "output": folder / "score.json",
        "repetitions": 2,
        "warm_ups": 1,
    }
    return ScoreBench(**usual | more)


def invoke(folder: Path, *options: str) -> Any:
    usual = ["score", "--output", str(folder / "score.json"), "--params", "tiny"]
    return CliRunner().invoke(app, [*usual, *options])


def test_the_command_prints_a_table_and_writes_json_and_a_picture(tmp_path: Path) -> None:
    options = ["--points", "40x3x8", "--peers", "naive,padded", "--sessions", "2"]
    done = invoke(tmp_path, *options, "--dtype", "float32", "--repetitions", "1")
    assert done.exit_code == 0, done.output
    assert "padded / ours" in done.output
    assert "scores/s" in done.output
    run = Run.model_validate_json((tmp_path / "score.json").read_text())
    assert run.complete
    assert [row.name for row in run.points[0].contestants] == ["ours", "naive", "padded"]
    assert (tmp_path / "score.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_keeps_every_sample_and_everyone_agrees(tmp_path: Path) -> None:
    turns: list[str] = []
    config = a_config(tmp_path)
    run = score_bench(config, advance=turns.append)
    assert len(turns) == count_turns(config)
    assert run == Run.model_validate_json(config.output.read_text())
    assert [point.label for point in run.points] == ["40x3x8", "24x1x8"]
    for point in run.points:
        assert [row.name for row in point.contestants] == list(LOCAL)
        assert len(point.gemm.cpu_s) == 2
        for row in point.contestants:
            assert len(row.samples.cpu_s) == len(row.samples.wall_s) == 2
            assert row.agrees
            assert row.max_q_difference < 1e-5
        assert point.ratio("ours") == 1
    assert [row.sessions for row in run.sessions] == [1, 3]
    assert all(len(row.samples.wall_s) == 2 for row in run.sessions)


def test_lengths_do_not_come_again_if_histories_may_be_shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def draws(point: Point, **drawn: Any) -> Step:
        lengths.append(point.history)
        return draw_step(point, **drawn)

    monkeypatch.setattr("benchmarks.score.run.draw_step", draws)
    usual: dict[str, Any] = {"points": (POINT,), "peers": (), "sessions": (), "repetitions": 4}
    score_bench(a_config(tmp_path, fewer=20, **usual))
    assert len(set(lengths)) > 2
    assert all(20 <= length <= 40 for length in lengths)
    with pytest.raises(ValueError, match=r"fewer = 35 .*5x3x8: .* 5 tokens .* 11 "):
        a_config(tmp_path, fewer=35, **usual)


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("point", [POINT, Point(20, 1, 4), Point(120, 6, 16), Point(60, 3, 16, 9)], ids=str)
def test_every_baseline_computes_the_reference(tiny: LoadedQNet, name: Any, point: Point) -> None:
    baselines = build_baselines(["naive", name], tiny, cache_bytes=2**20)
    for seed in range(3):
        step = a_step(point, seed=seed)
        baselines[name].prepare(step)
        expected = baselines["naive"].score(step)
        assert baselines[name].score(step) == pytest.approx(expected, abs=2e-6)


def test_ours_reads_the_tokens_that_the_others_are_given(tiny: LoadedQNet) -> None:
    step = a_step()
    assert tiny.renderer.encode_history(step.request.history) == step.now.history
    said = [tiny.renderer.encode_candidate(c) for c in step.request.candidates]
    assert said == step.now.candidates
    assert len(step.now.history) == POINT.history + OBSERVATION_TOKENS


def test_who_computes_something_else_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = build_baselines

    class Forgetful(Naive):
        """Leaves out the first token."""

        def score(self, step: Step) -> list[float]:
            now = replace(step.now, history=step.now.history[1:])
            return super().score(replace(step, now=now))

    def build(names: Any, loaded: LoadedQNet, **options: Any) -> Any:
        return real(names, loaded, **options) | {"padded": Forgetful(loaded.model)}

    monkeypatch.setattr(run_module, "build_baselines", build)
    run = score_bench(a_config(tmp_path, points=(POINT,), sessions=()))
    assert run.points[0].ratio("padded") is None
    assert run.points[0].ratio("naive-packed") is not None


def test_an_interrupted_run_keeps_what_it_measured(tmp_path: Path) -> None:
    config = a_config(tmp_path)
    first_point = len(LOCAL) * (config.repetitions + config.warm_ups)
    turns: list[str] = []

    def interrupt(what: str) -> None:
        turns.append(what)
        if len(turns) == first_point + len(LOCAL) + 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_bench(config, advance=interrupt)
    kept = json.loads(config.output.read_text())
    assert kept["complete"] is False
    assert [point["history"] for point in kept["points"]] == [40]
    assert not list(tmp_path.glob("*.part"))


def test_a_run_interrupted_at_its_first_turn_says_which_model_it_was(tmp_path: Path) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    config = a_config(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        score_bench(config, advance=interrupt)
    kept = Run.model_validate_json(config.output.read_text())
    assert [model.name for model in kept.models] == ["tiny"]
    assert kept.points == ()


def test_ctrl_c_says_that_the_output_is_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "_measure_sessions", interrupted)
    done = invoke(tmp_path, "--points", "40x2x8", "--dtype", "float32", "--repetitions", "1")
    assert done.exit_code == 130
    assert "complete: false" in done.output
    kept = Run.model_validate_json((tmp_path / "score.json").read_text())
    assert len(kept.points) == 1
    assert not kept.complete


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--params", "28b"], ["params", "'28b' is not one of", "125m"]),
        (["--points", "512x2"], ["points", "512x2", "1024x5x48"]),
        (["--points", "512x2x32x24"], ["512x2x32x24", "share the first 24", "at most 23"]),
        (["--points", "512x0x32"], ["0 candidates", "at least 1"]),
        (["--points", "512x2x3"], ["3 tokens", "at least 4"]),
        (["--points", "40x2x32"], ["history of 40", "at least 41"]),
        (["--points", "16384x2x32"], ["16,504", "16,384", "shorten"]),
        (["--points", ","], ["points", "at least 1"]),
        (["--peers", "naive,faster"], ["faster", "dynamic-cache"]),
        (["--peers", "vllm"], ["peer 'vllm' needs vLLM", "no Python with vLLM", "make vllm-cpu"]),
        (
            ["--peers", "vllm-http", "--vllm-python", "no/python"],
            ["vllm-http", "'no/python' is not a program", "--vllm-python"],
        ),
        (["--sessions", "0"], ["sessions", "greater than or equal to 1"]),
        (["--dtype", "float8"], ["float8", "bfloat16"]),
        (["--device", "tpu"], ["tpu", "cpu"]),
        (["--output", "score.txt"], ["score.txt", ".json"]),
        (["--output", "nowhere/score.json"], ["no folder nowhere", "create it"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("--") else "",
)
def test_a_bad_option_is_refused_with_a_remedy(tmp_path: Path, options: list[str], said: list[str]) -> None:
    done = invoke(tmp_path, *options)
    assert done.exit_code == 2
    words = " ".join(done.output.split())
    assert all(part in words for part in said), words
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_those_in_processes_of_their_own_take_part_and_agree(tmp_path: Path) -> None:
    config = a_config(
        tmp_path, points=(POINT,), peers=NAMES, sessions=(2,), repetitions=1, vllm_python=str(vllm_python(tmp_path))
    )
    turns: list[str] = []
    run = score_bench(config, advance=turns.append)
    assert len(turns) == count_turns(config)
    [point] = run.points
    assert [row.name for row in point.contestants] == list(NAMES)
    for row in point.contestants:
        assert row.agrees, row
        assert row.max_q_difference < 1e-5
        assert row.samples.median_cpu_s > 0
        assert row.samples.median_wall_s > 0
    http, vllm_http = point.contestant("http"), point.contestant("vllm-http")
    assert http is not None
    assert vllm_http is not None
    ratio = vllm_http.samples.median_cpu_s / http.samples.median_cpu_s
    assert point.ratio("vllm-http") == ratio
    assert [row.name for row in run.sessions] == list(OF_MANY_SESSIONS)
    plot_run(run, tmp_path / "score.png")
    console = Console(record=True, width=200, file=io.StringIO())
    print_run(run, console)
    assert "vllm-http / http" in console.export_text()


def test_a_python_without_vllm_is_refused_with_what_it_said(tmp_path: Path) -> None:
    config = a_config(tmp_path, peers=("vllm",), vllm_python=sys.executable)
    with pytest.raises(ConfigError, match=r"(?s)vLLM .*ModuleNotFoundError: .*'vllm'"):
        score_bench(config)


def test_the_floor_of_one_layer_counted_by_hand() -> None:
    shape = Shape(hidden=4, layers=1, heads=2, kv_heads=1, ffn=8, vocabulary=16, head_width=2)
    # One candidate of four tokens after 10 + 80: keys and values for 84 tokens, 2 · 4 · 2 each;
    # queries, output and MLP for one; attention over 94 columns; a head of 4 · 2 + 2 · 2 + 2.
    kv, rest = 84 * 2 * (2 * 4 * 2), 2 * (4 * 4 + 4 * 4 + 3 * 4 * 8)
    attention, head = 94 * 2 * (2 * 4), 2 * (4 * 2 + 2 * 2 + 2)
    assert least_flops(shape, Point(10, 1, 4)) == kv + rest + attention + head


def test_an_inner_layer_works_on_every_new_token() -> None:
    point = Point(100, 2, 8)
    one, two, three = (least_flops(replace(SHAPE, layers=n), point) for n in (1, 2, 3))
    linear = 2 * 32 * (32 + 16 + 16 + 32 + 3 * 48)
    columns = sum(range(101, 181)) + sum(range(181, 187)) + sum(range(181, 191))
    assert three - two == two - one == point.new_tokens * linear + columns * 4 * 32


def test_candidates_differ_in_length_and_have_the_length_asked_for_on_average() -> None:
    point = Point(1024, 5, 48)
    assert point.candidate_lengths == [36, 42, 48, 54, 60]
    assert point.new_tokens == 80 + 5 * 48
    assert point.longest == 1024 + 80 + 60


def test_what_candidates_begin_with_is_new_once() -> None:
    point = Point(1024, 5, 48, 32)
    assert str(point) == "1024x5x48x32"
    assert point.new_tokens == 80 + 32 + 5 * 16
    shape = replace(SHAPE, layers=1)
    before, saved = Point(1024, 5, 48), 4 * 32
    kv = 2 * shape.hidden * 2 * shape.kv_heads * shape.head_size
    assert least_flops(shape, before) - least_flops(shape, point) == saved * kv
    step = a_step(point)
    for asked in (step.before, step.now):
        assert len({tuple(candidate[:32]) for candidate in asked.candidates}) == 1
        assert len({candidate[32] for candidate in asked.candidates}) > 1
