"""Run of a GPU check: each part in a process of its own, within its budget and the whole limit."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.gpu.config import GpuCheck, GpuRun, PartRow, Status
from benchmarks.gpu.parts import ROOT, Figures, Part, parts_of
from benchmarks.measurement.measure import describe_machine

PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "peft", "triton", "numpy")
_LAST_CHARACTERS = 2000
_LEAST_S = 5.0

Advance = Callable[[str], None]


def gpu_check(config: GpuCheck, *, advance: Advance = lambda _: None) -> GpuRun:
    """Run every part; what failed is reported and the others run on.

    Args:
        advance: called with the name of each part before it.
    """
    started = time.monotonic()
    run = GpuRun(
        complete=False,
        command=config.command,
        small=config.small,
        machine=describe_machine(device=config.device, threads=torch.get_num_threads()),
        packages={name: _version(name) for name in PACKAGES},
        cuda=torch.version.cuda,
        device_memory=_device_memory(config.device),
    )
    try:
        with TemporaryDirectory(prefix="qguide-gpu-") as folder:
            for part in parts_of(config, Path(folder)):
                advance(part.name)
                left_s = 60 * config.minutes - (time.monotonic() - started)
                row = run_part(part, limit_s=min(part.budget_s, left_s))
                run = run.model_copy(update={"parts": (*run.parts, row)})
        run = run.model_copy(update={"complete": True})
    finally:
        run = run.model_copy(update={"wall_s": time.monotonic() - started})
        config.output.write_text(run.model_dump_json(indent=1) + "\n")
    return run


def run_part(part: Part, *, limit_s: float) -> PartRow:
    """Run one part, stop it at its limit, and read its figures."""
    if part.missing:
        return _row(part, "skipped", 0.0, reason=part.missing)
    if limit_s < _LEAST_S:
        return _row(part, "out of time", 0.0, reason="no time is left")
    log = part.result.with_suffix(".log")
    started = time.monotonic()
    status = _wait(part, log, limit_s)
    wall_s = time.monotonic() - started
    end = _end_of(part.result.with_suffix(".out")) + _end_of(log)
    if status is None:
        return _row(part, "out of time", wall_s, reason=f"stopped after {limit_s:.0f} s: {end}")
    try:
        figures = part.read(part.result)
    except (OSError, ValueError, IndexError, SyntaxError) as error:
        reason = f"exit status {status}, and no figures ({error}): {end}"
        return _row(part, "failed", wall_s, reason=reason)
    if status:
        return _row(part, "failed", wall_s, figures, reason=f"exit status {status}: {end}")
    return _row(part, "passed", wall_s, figures)


def _wait(part: Part, log: Path, limit_s: float) -> int | None:
    """Exit status of a part's process; None if it was stopped at its limit."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as errors, part.result.with_suffix(".out").open("wb") as output:
        process = subprocess.Popen(
            part.command,
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # so that compilers it has started end with it
        )
        try:
            return process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _kill_group(process)


def _end_of(path: Path) -> str:
    return path.read_text(errors="replace")[-_LAST_CHARACTERS:]


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _row(part: Part, status: Status, wall_s: float, figures: Figures | None = None, reason: str = "") -> PartRow:
    return PartRow(
        name=part.name, status=status, budget_s=part.budget_s, wall_s=wall_s, figures=figures or {}, reason=reason
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device_memory(device: str) -> int:
    if device == "cpu":
        return 0
    return int(torch.cuda.get_device_properties(device).total_memory)
