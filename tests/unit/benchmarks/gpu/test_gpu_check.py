"""`make gpu-check`: all parts run on a CPU with tiny shapes, and one that fails stops no other."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from benchmarks.gpu.config import GpuCheck, GpuRun, PartRow
from benchmarks.gpu.parts import CONTRACTS, ROOT, Part, parts_of, read_run_tests, read_tests
from benchmarks.gpu.report import goals, print_gpu
from benchmarks.gpu.run import run_part
from benchmarks.gpu.training_step import episode_tree
from benchmarks.measurement.measure import describe_machine

OF_THE_SERVER = ("fastapi", "starlette", "uvicorn", "pydantic_settings", "redis", "limits", "trl", "pymysql")
"""Packages that a machine for training may lack."""

BLOCKER = f"""
import sys
from importlib.abc import MetaPathFinder

class Blocker(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in {OF_THE_SERVER!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""


@pytest.mark.slow
def test_the_check_runs_on_a_cpu_without_the_packages_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    output = tmp_path / "gpu.json"
    flags = ["--device", "cpu", "--small", "--minutes", "60", "--patience", "20"]
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks", "gpu", *flags, "--output", str(output)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    run = GpuRun.model_validate_json(output.read_text())
    assert run.passed
    whole, adapters, scores, limits, contracts = run.parts
    for part in (whole, adapters):
        assert part.figures["tokens"] <= 512
        assert 0 < part.figures["share_of_arithmetic"] < 1
        assert part.figures["losses"][-1] != part.figures["losses"][0]
        assert not part.figures["flex_attention"]
        assert part.figures["peak_memory_bytes"] is None
    assert whole.figures["trained_parameters"] == whole.figures["parameters"]
    assert adapters.figures["trained_parameters"] < adapters.figures["parameters"]
    assert scores.figures["points"]["64x2x8"]["ours"]["agrees"]
    assert set(scores.figures["scores_per_s"]) == {"1", "2"}
    assert limits.figures["warm_steps"]["64x2x8"]["wall_ms"] > 0
    assert limits.figures["drawing"]["further_token_ms"] > 0
    # Without CUDA none of its tests runs; they are found all the same.
    assert contracts.figures["tests"] == contracts.figures["skipped"] > 30


def part(tmp_path: Path, code: str) -> Part:
    return Part(
        name="a part",
        command=[sys.executable, "-c", code],
        budget_s=60,
        result=tmp_path / "figures.out",
        read=lambda path: dict(json.loads(path.read_text())),
    )


def test_a_part_that_fails_or_hangs_is_told_with_the_reason(tmp_path: Path) -> None:
    good = run_part(part(tmp_path, "print('{\"a\": 1}')"), limit_s=600)
    assert (good.status, good.figures, good.reason) == ("passed", {"a": 1}, "")
    failed = run_part(part(tmp_path, "print('{\"a\": 1}'); raise SystemExit('no memory')"), limit_s=600)
    assert (failed.status, failed.figures) == ("failed", {"a": 1})
    assert "no memory" in failed.reason
    silent = run_part(part(tmp_path, "import sys; sys.stderr.write('gone')"), limit_s=600)
    assert silent.status == "failed"
    assert "gone" in silent.reason
    hanging = run_part(part(tmp_path, "import time; time.sleep(3600)"), limit_s=5.0)
    assert hanging.status == "out of time"
    assert "after 5 s" in hanging.reason
    late = run_part(part(tmp_path, "print('{}')"), limit_s=1.0)
    assert (late.status, late.reason) == ("out of time", "no time is left")
    console = Console(record=True, width=200)
    print_gpu(run_of(good, failed, silent, hanging, late), console)
    assert console.export_text().count("a part: ") == 4
    assert run_of(good).passed
    assert not any(run_of(good, row).passed for row in (failed, silent, hanging, late))


def run_of(*rows: PartRow) -> GpuRun:
    return GpuRun(
        complete=True,
        command="",
        small=True,
        machine=describe_machine(device="cpu", threads=1),
        packages={},
        cuda=None,
        device_memory=0,
        parts=rows,
    )


def test_a_check_that_leaves_a_part_out_does_not_pass(tmp_path: Path) -> None:
    good = run_part(part(tmp_path, "print('{}')"), limit_s=600)
    absent = replace(part(tmp_path, "print('{}')"), missing="not installed: peft")
    left_out = run_part(absent, limit_s=600)
    assert (left_out.status, left_out.reason) == ("skipped", "not installed: peft")
    assert not run_of(good, left_out).passed


def test_goals_are_met_or_missed_by_the_recorded_figures() -> None:
    run = GpuRun.model_validate_json((ROOT / "results" / "gpu.json").read_text())
    of_step, _, _, _, of_limits, _ = run.parts
    assert goals(of_step) == "40% of the arithmetic: missed"
    assert goals(of_limits) == "1024x5x48 in 10 ms: missed"
    faster = of_step.model_copy(update={"figures": of_step.figures | {"share_of_arithmetic": 0.41}})
    assert goals(faster) == "40% of the arithmetic: met"


def test_contract_tests_that_are_all_skipped_fail(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(
        "import os, pytest\n"
        "def test_one():\n"
        "    if 'RUN' not in os.environ: pytest.skip('no CUDA device')\n"
        "def test_other():\n"
        "    pytest.skip('no CUDA device')\n"
    )
    junit = tmp_path / "tests.xml"
    bare = ["env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1"]  # plugins take most of the time
    command = [*bare, sys.executable, "-m", "pytest", "-q", "-c", os.devnull, f"--junitxml={junit}", str(tmp_path)]
    tests = Part("tests", command, budget_s=600, result=junit, read=read_run_tests)
    skipped = run_part(tests, limit_s=600)
    assert skipped.status == "failed"
    assert "all 2 tests were skipped" in skipped.reason
    one_runs = run_part(replace(tests, command=["env", "RUN=1", *command]), limit_s=600)
    assert (one_runs.status, one_runs.figures["skipped"]) == ("passed", 1)


def test_the_contract_tests_have_to_run_on_a_gpu(tmp_path: Path) -> None:
    config = GpuCheck(output=tmp_path / "gpu.json", device="cpu")
    on_gpu = config.model_copy(update={"device": "cuda"})
    assert parts_of(config, tmp_path)[-1].read is read_tests
    assert parts_of(on_gpu, tmp_path)[-1].read is read_run_tests


def test_the_budgets_sum_up_to_less_than_the_limit(tmp_path: Path) -> None:
    config = GpuCheck(output=tmp_path / "gpu.json", device="cpu")
    assert sum(part.budget_s for part in parts_of(config, tmp_path)) <= 60 * config.minutes <= 480


def test_every_test_that_needs_cuda_is_among_the_contract_tests() -> None:
    marked = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "needs_cuda" in path.read_text() and path != Path(__file__)
    }
    assert marked
    assert all(any(name.startswith(contract) for contract in CONTRACTS) for name in marked)


@pytest.mark.parametrize("tokens", [512, 9000])
def test_an_episode_fills_the_tree_and_its_paths_have_an_end(tokens: int) -> None:
    tree = episode_tree(tokens, vocabulary=128, rng=Random(0))
    assert 0.5 * tokens < len(tree) <= tokens
    assert max(tree.depths) < 8192
    assert all(better.q_value >= worse.q_value for better, worse in tree.pairs)
