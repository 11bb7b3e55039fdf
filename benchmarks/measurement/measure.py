"""Timers, the machine's speed, and the lower bound of a step's cost."""

import gc
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TypeVar

import torch
import transformers

from benchmarks.measurement.records import Machine
from benchmarks.measurement.shapes import Shape
from benchmarks.measurement.steps import OBSERVATION_TOKENS, Point

T = TypeVar("T")

_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "fma", "asimd", "bf16")


TOLERANCES = {"float32": 1e-4, "bfloat16": 0.1}
"""Tolerance of |ΔQ|, relative to max(1, |Q|); in float32 only the order of sums differs."""


def largest_difference(q_values: Sequence[float], reference: Sequence[float]) -> float:
    """The largest |ΔQ|; infinite if a Q is NaN, so that it does not count as agreement."""
    found = [abs(q - r) for q, r in zip(q_values, reference, strict=True)]
    return max(found) if all(map(isfinite, found)) else float("inf")


@dataclass(frozen=True, slots=True)
class Timing:
    """CPU time of all threads and processes involved, and wall-clock time."""

    cpu_s: float
    wall_s: float


Clock = Callable[[], Timing]
"""Returns the time spent since some fixed moment by the processes that do the work."""


def clock_here(device: str) -> Timing:
    """Time spent by this process, after all work on the device is done."""
    if device != "cpu":
        torch.cuda.synchronize(device)
    return Timing(time.process_time(), time.perf_counter())


def clock_of(pids: Iterable[int]) -> Timing:
    """CPU time of other processes, and wall-clock time of this one.

    Raises:
        OSError: one has exited, or the system does not report their CPU time.
    """
    # Linux's id of a process's CPU clock: MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED).
    cpu_s = sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)
    return Timing(cpu_s, time.perf_counter())


def timed(call: Callable[[], T], *, clock: Clock) -> tuple[T, Timing]:
    """Result and time of a call, with the garbage collector switched off."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        before = clock()
        result = call()
        after = clock()
    finally:
        if collecting:
            gc.enable()
    return result, Timing(after.cpu_s - before.cpu_s, after.wall_s - before.wall_s)


class MatrixProduct:
    """A square matrix product large enough to reach the machine's full rate in this dtype."""

    def __init__(self, *, dtype: torch.dtype, device: str) -> None:
        size = 1024 if device == "cpu" else 8192
        self.flops = 2 * size**3
        generator = torch.Generator(device).manual_seed(0)
        self._a, self._b = (torch.randn((size, size), generator=generator, device=device).to(dtype) for _ in range(2))

    def __call__(self) -> None:
        """Compute the product once."""
        torch.mm(self._a, self._b)


def least_flops(shape: Shape, point: Point) -> int:
    """Lower bound of the multiplications and additions of a step whose history is cached.

    Every layer but the last processes every new token; the last computes keys and values for all of
    them and everything else only for the M tokens at which Q is read. Attention covers only the
    columns that a token can see. Norms, rotations, softmax and embeddings are not counted.
    """
    query = shape.heads * shape.head_size
    keys = shape.kv_heads * shape.head_size
    in_kv = 2 * shape.hidden * 2 * keys
    the_rest = 2 * shape.hidden * (2 * query + 3 * shape.ffn)
    state = point.history + OBSERVATION_TOKENS
    seen_by_observation = sum(range(point.history + 1, state + 1))
    apart = state + point.alike
    seen_by_candidates = sum(range(state + 1, apart + 1)) + sum(
        sum(range(apart + 1, state + length + 1)) for length in point.candidate_lengths
    )
    seen_by_reads = sum(state + length for length in point.candidate_lengths)
    per_column = 4 * query
    inner = point.new_tokens * (in_kv + the_rest)
    inner += (seen_by_observation + seen_by_candidates) * per_column
    last = point.new_tokens * in_kv + point.candidates * the_rest + seen_by_reads * per_column
    head = 2 * shape.head_width * (shape.hidden + shape.head_width + 1)
    return (shape.layers - 1) * inner + last + point.candidates * head


def describe_machine(*, device: str, threads: int) -> Machine:
    """Describe the hardware and library versions that affect speed."""
    cpu, flags = _cpu()
    accelerator = "" if device == "cpu" else str(torch.cuda.get_device_name(device))
    return Machine(
        cpu=cpu,
        cpu_flags=tuple(name for name in _FLAGS if name in flags),
        cores=os.cpu_count() or 1,
        accelerator=accelerator,
        device=device,
        threads=threads,
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        torch_cpu_capability=torch.backends.cpu.get_cpu_capability(),
    )


def _cpu() -> tuple[str, set[str]]:
    """CPU name and flags from Linux; elsewhere Python's name of the CPU and no flags."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine(), set()
    fields = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    flags = fields.get("flags") or fields.get("Features") or ""
    return fields.get("model name") or platform.machine(), set(flags.split())
