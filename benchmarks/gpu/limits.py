"""Limits of a warm step of scoring and a drawn token on a device, in a process of its own.

    python -m benchmarks.gpu.limits '{"size": "7b"}'

prints a JSON object. A step or token that takes longer than its kernels waits for the host, which
launches them; kernels that take longer than reading the weights once, or than the arithmetic at the
rate of a large matrix product, are what is left to gain.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from statistics import median
from typing import Final

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM

from benchmarks.measurement.measure import MatrixProduct, clock_here, least_flops, timed
from benchmarks.measurement.shapes import SHAPES, build_qnet, llama_config, spell
from benchmarks.measurement.steps import Point, draw_step
from benchmarks.score.baselines import Ours
from qguide.qnet.device.local_policy import LocalPolicy
from qguide.qnet.models.checkpoint import LoadedPolicy, LoadedQNet
from qguide.qnet.types import Message, SampleRequest, Sampling

_COPIED_BYTES: Final = 2 * 1024**3
_CACHE_BYTES: Final = 8 * 1024**3
_DRAWN: Final = 5


class LimitsOptions(BaseModel):
    """Options of the measurement.

    Attributes:
        size: name of the trunk's shape.
        points: history, candidates and tokens of each candidate.
        repetitions: warm steps of each point, each of another session with another length.
        drawn_tokens: tokens of each of five drawn candidates.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: str
    points: tuple[tuple[int, int, int], ...] = ((1024, 5, 48), (3500, 8, 64))
    repetitions: int = Field(default=5, ge=1)
    drawn_tokens: int = Field(default=32, ge=2)
    device: str = "cuda"


def measure(options: LimitsOptions) -> dict[str, object]:
    """Rates of the device, and what steps and draws take beside them."""
    device = options.device
    flops_per_s, bytes_per_s = flops_rate(device), _bytes_per_s(device)
    shape = SHAPES[options.size]
    loaded = build_qnet(options.size, shape, seed=0, dtype=torch.bfloat16, device=device)
    weights = sum(p.numel() * p.element_size() for p in loaded.model.trunk.parameters())
    rates = {"matrix_product_tflops": flops_per_s / 1e12, "copy_gb_per_s": bytes_per_s / 1e9}
    steps = {}
    for sizes in options.points:
        point = Point(*sizes)
        steps[str(point)] = _warm_step(options, loaded, point) | {
            "reading_weights_ms": 1e3 * weights / bytes_per_s,
            "arithmetic_ms": 1e3 * least_flops(shape, point) / flops_per_s,
        }
    del loaded.model.trunk
    return {"size": options.size, "weight_bytes": weights, **rates, "warm_steps": steps, "drawing": _drawing(options)}


def _warm_step(options: LimitsOptions, loaded: LoadedQNet, point: Point) -> dict[str, float]:
    """Times of a scored step whose history is cached, of sessions one after the other."""
    scorer = Ours(loaded, cache_bytes=_CACHE_BYTES)
    # No two are of one length, as in practice: some kernels are planned for each length.
    points = [replace(point, history=point.history + 7 * i) for i in range(options.repetitions + 2)]
    vocabulary = SHAPES[options.size].vocabulary
    steps = [draw_step(one, vocabulary=vocabulary, rng=Random(i)) for i, one in enumerate(points)]
    seconds = []
    for step in steps[:-1]:
        scorer.prepare(step)
        _, timing = timed(partial(scorer.score, step), clock=scorer.clock)
        seconds.append(timing.wall_s)
    scorer.prepare(steps[-1])
    return {
        "wall_ms": 1e3 * median(seconds[1:]),  # the first one loads kernels
        **_kernels(lambda: scorer.score(steps[-1]), options.device),
    }


def _drawing(options: LimitsOptions) -> dict[str, float]:
    """Times of drawing candidates after the shorter history, a token of all of them at a time."""
    shape = SHAPES[options.size]
    with torch.device(options.device):
        model = AutoModelForCausalLM.from_config(llama_config(shape), dtype=torch.bfloat16)
    renderer = build_qnet("tiny", SHAPES["tiny"], seed=0, dtype=torch.bfloat16, device="cpu")
    policy = LocalPolicy(LoadedPolicy(options.size, model.eval(), renderer.renderer, None))
    history, _, _ = options.points[0]

    def draw(seed: int, tokens: int) -> None:
        words = [Random(seed).randrange(1, SHAPES["tiny"].vocabulary) for _ in range(history)]
        messages = (Message("user", spell(words)),)
        sampling = Sampling(temperature=1.0, max_tokens=tokens, seed=seed)
        policy.sample_batch([SampleRequest(messages, _DRAWN, sampling)])

    draw(0, 2)
    tokens = options.drawn_tokens
    first_s, all_s = (_seconds(partial(draw, n, n), options.device, 1) for n in (1, tokens))
    return {
        "candidates": _DRAWN,
        "tokens": tokens,
        "first_token_ms": 1e3 * first_s,
        "further_token_ms": 1e3 * (all_s - first_s) / (tokens - 1),
        **_kernels(lambda: draw(tokens + 1, tokens), options.device),
    }


def flops_rate(device: str) -> float:
    """Multiplications and additions in a second of a large matrix product in bfloat16."""
    product = MatrixProduct(dtype=torch.bfloat16, device=device)
    return product.flops / _seconds(product, device, 10)


def _seconds(call: Callable[[], object], device: str, calls: int) -> float:
    """Wall-clock time of one of several calls, after one that is not counted."""
    if calls > 1:
        call()
    _, timing = timed(lambda: [call() for _ in range(calls)], clock=lambda: clock_here(device))
    return timing.wall_s / calls


def _bytes_per_s(device: str) -> float:
    """Bytes read and written by a large copy in a second."""
    size = _COPIED_BYTES if device != "cpu" else _COPIED_BYTES // 64
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _seconds(lambda: target.copy_(source), device, 5)


def _kernels(call: Callable[[], object], device: str) -> dict[str, float]:
    """Number and time of the kernels that a call launches; on a CPU there are none."""
    if device == "cpu":
        call()
        return {}
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        call()
        torch.cuda.synchronize(device)
    kernels = [e for e in profiled.events() if e.device_type == DeviceType.CUDA]
    return {"kernels": len(kernels), "kernels_ms": sum(e.device_time_total for e in kernels) / 1e3}


if __name__ == "__main__":
    started = time.perf_counter()
    figures = measure(LimitsOptions.model_validate_json(sys.argv[1]))
    json.dump(figures | {"wall_s": time.perf_counter() - started}, sys.stdout)
