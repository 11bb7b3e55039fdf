"""Parts of a GPU check: a command each, and how its figures are read."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from benchmarks.gpu.config import GpuCheck
from benchmarks.measurement.records import Run

ROOT: Final = Path(__file__).parents[2]
CONTRACTS: Final = (
    "tests/contract/trees",  # first, because its compilations take longest
    "tests/contract/scorers/test_architectures.py",
    "tests/unit/training/optimization/test_trainer.py",
    "tests/unit/test_stand_in_device.py",
)
"""Tests that need CUDA; each is marked with it."""
_NEEDED_BY_TESTS: Final = ("pytest", "pytest_asyncio", "hypothesis", "psutil", "structlog", "stamina")
_MOST_WORKERS: Final = 12

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """One part.

    Attributes:
        command: its command line; it writes its results to `result`, or prints them.
        budget_s: most time that it may take.
        read: reads the figures.
        missing: reason to leave it out; empty to run it.
    """

    name: str
    command: Sequence[str]
    budget_s: float
    result: Path
    read: Callable[[Path], Figures]
    missing: str = ""


def parts_of(config: GpuCheck, folder: Path) -> list[Part]:
    """The parts in their order; the sum of their budgets is below the limit of eight minutes.

    Args:
        folder: an empty folder for their results.
    """
    if config.small:
        return [
            _training(config, folder, "tiny", adapter_rank=None, tokens=512, budget_s=60),
            _training(config, folder, "tiny", adapter_rank=4, tokens=512, budget_s=60),
            _scoring(config, folder, "tiny", budget_s=60),
            _limits(config, folder, "tiny", budget_s=60),
            _contracts(config, folder, budget_s=60),
        ]
    return [
        _training(config, folder, "1b", adapter_rank=None, tokens=8192, budget_s=40),
        _training(config, folder, "7b", adapter_rank=16, tokens=32_768, budget_s=80),
        _scoring(config, folder, "1b", budget_s=40),
        _scoring(config, folder, "7b", budget_s=60),
        _limits(config, folder, "7b", budget_s=60),
        _contracts(config, folder, budget_s=170),
    ]


def _training(
    config: GpuCheck, folder: Path, size: str, *, adapter_rank: int | None, tokens: int, budget_s: float
) -> Part:
    trained = "all weights" if adapter_rank is None else "adapters"
    options = {"size": size, "adapter_rank": adapter_rank, "tokens": tokens, "device": config.device}
    module = "benchmarks.gpu.training_step"
    return Part(
        name=f"training step, {size}, {trained}",
        command=[sys.executable, "-m", module, json.dumps(options)],
        budget_s=budget_s * config.patience,
        result=folder / f"training_{size}_{adapter_rank}.out",
        read=_last_line,
        missing="" if adapter_rank is None else _missing("peft"),
    )


def _limits(config: GpuCheck, folder: Path, size: str, *, budget_s: float) -> Part:
    options: Figures = {"size": size, "device": config.device}
    if config.small:
        options |= {"points": [[64, 2, 8]], "repetitions": 1, "drawn_tokens": 3}
    return Part(
        name=f"limits, {size}",
        command=[sys.executable, "-m", "benchmarks.gpu.limits", json.dumps(options)],
        budget_s=budget_s * config.patience,
        result=folder / f"limits_{size}.out",
        read=_last_line,
    )


def _scoring(config: GpuCheck, folder: Path, size: str, *, budget_s: float) -> Part:
    result = folder / f"score_{size}.json"
    # Not through `qguide`, whose server needs packages that a machine for training may lack.
    options = {
        "params": size,
        "dtype": "bfloat16",
        "device": config.device,
        "points": "64x2x8" if config.small else "1024x5x48,3500x8x64",
        "peers": "naive,naive-packed",
        "sessions": "1,2" if config.small else "1,16",
        "repetitions": "1" if config.small else "3",
        "output": str(result),
    }
    listed = [word for key, value in options.items() for word in (f"--{key}", value)]
    return Part(
        name=f"bench score, {size}",
        command=[sys.executable, "-m", "benchmarks", "score", *listed],
        budget_s=budget_s * config.patience,
        result=result,
        read=_score_figures,
        missing=_missing("typer", "httpx", "matplotlib"),
    )


def _contracts(config: GpuCheck, folder: Path, *, budget_s: float) -> Part:
    result = folder / "contracts.xml"
    # Tiny models leave a GPU idle; on a CPU every test is skipped.
    several = config.device != "cpu" and find_spec("xdist") is not None
    workers = max(1, min(_MOST_WORKERS, (os.cpu_count() or 1) - 2))
    in_parallel = ["-n", str(workers)] if several else []
    # Warnings of other versions than the pinned ones are no failures here, nor options they lack.
    lenient = ["-W", "default", "-o", "addopts=--import-mode=importlib"]
    flags = ["-m", "cuda", "-q", *lenient, "-p", "no:cacheprovider", *in_parallel]
    return Part(
        name="contract tests on CUDA",
        command=[sys.executable, "-m", "pytest", *flags, f"--junitxml={result}", *CONTRACTS],
        budget_s=budget_s * config.patience,
        result=result,
        read=read_tests if config.device == "cpu" else read_run_tests,
        missing=_missing(*_NEEDED_BY_TESTS) or _without_tests(),
    )


def _missing(*packages: str) -> str:
    missing = [name for name in packages if find_spec(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def _without_tests() -> str:
    return "" if (ROOT / CONTRACTS[0]).exists() else f"no tests in {ROOT}; use a source checkout"


def _last_line(path: Path) -> Figures:
    """The JSON object that ends an output, behind what libraries have printed."""
    figures: Figures = json.loads(path.read_text().splitlines()[-1])
    return figures


def _score_figures(path: Path) -> Figures:
    """Median times by point and implementation, and scores per second by number of sessions."""
    run = Run.model_validate_json(path.read_text())
    return {
        "points": {
            point.label: {
                row.name: {
                    "wall_ms": 1e3 * row.samples.median_wall_s,
                    "max_q_difference": row.max_q_difference,
                    "agrees": row.agrees,
                }
                for row in point.contestants
            }
            for point in run.points
        },
        "scores_per_s": {str(row.sessions): row.scores_per_s for row in run.sessions},
        "parameters": run.models[0].parameters,
    }


def read_run_tests(path: Path) -> Figures:
    """Numbers of tests by outcome, of which some have to have run.

    Raises:
        ValueError: every test was skipped, which pytest takes for a success.
    """
    figures = read_tests(path)
    if figures["tests"] == figures["skipped"]:
        raise ValueError(
            f"all {figures['tests']} tests were skipped; pytest finds no CUDA device, so check "
            "`torch.cuda.is_available()`"
        )
    return figures


def read_tests(path: Path) -> Figures:
    """Numbers of tests by outcome, and the names of those that failed."""
    suites = ElementTree.fromstring(path.read_text()).iter("testsuite")
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    failed: list[str] = []
    for suite in suites:
        for key in counts:
            counts[key] += int(suite.get(key, 0))
        failed += [
            f"{case.get('classname')}.{case.get('name')}"
            for case in suite.iter("testcase")
            if case.find("failure") is not None or case.find("error") is not None
        ]
    return counts | {"failed": failed}
