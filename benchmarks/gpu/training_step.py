"""Training steps of a QNet with random weights on one packed tree, in a process of its own.

    python -m benchmarks.gpu.training_step '{"size": "7b", "adapter_rank": 16, "tokens": 32768}'

prints a JSON object: the time of each step, tokens per second, the share of the device's arithmetic
that the weights' products take, and the peak of the device's memory beside the one that
`training_memory` estimates.
"""

import json
import math
import sys
import time
from random import Random

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from benchmarks.gpu.limits import flops_rate
from benchmarks.measurement.shapes import SHAPES, build_qnet, llama_config
from qguide.qnet.engine.tree_attention import use_block_masks
from qguide.qnet.models.qnet import QNet
from qguide.training.optimization.accelerator import enable_gradient_checkpointing
from qguide.training.optimization.adapters import with_adapters
from qguide.training.optimization.optimizers import build_optimizers
from qguide.training.optimization.options import Lora, Optimization
from qguide.training.optimization.packed_trees import PackedTree, QPlace
from qguide.training.optimization.training_memory import trained_trunk
from qguide.training.q_training.options import QNetLossOptions
from qguide.training.q_training.qnet_loss import loss_of_tree

_CANDIDATES = 5
_CANDIDATE_TOKENS = 48
_OBSERVATION_TOKENS = 64
_LONGEST_PATH = 8192
# Multiplications and additions for each weight and token: forward, the gradients of what came
# before, and, where it is trained, its own. What checkpointing computes again is not counted.
_FLOPS = {"frozen": 4, "trained": 6}
_OPTIONS = QNetLossOptions(ranking_weight=0.2)


class TrainingStep(BaseModel):
    """Options of the measurement.

    Attributes:
        size: name of the trunk's shape.
        adapter_rank: rank of LoRA adapters on frozen bfloat16 weights; None trains all weights.
        tokens: distinct tokens of the packed tree.
        steps: number of steps; the first one compiles FlexAttention.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: str
    adapter_rank: int | None
    tokens: int = Field(ge=256)
    steps: int = Field(default=3, ge=2)
    device: str = "cuda"


def measure(options: TrainingStep) -> dict[str, object]:
    """Train for some steps and return the figures.

    Raises:
        FloatingPointError: a loss is not finite.
    """
    shape = SHAPES[options.size]
    net = build_trained_net(options)
    flex = use_block_masks(net.trunk, net.device)
    flops_per_s = flops_rate(options.device)
    tree = episode_tree(options.tokens, vocabulary=shape.vocabulary, rng=Random(0))
    optimizers = build_optimizers(net, Optimization(lr=1e-5))
    _reset_peak(options.device)
    seconds, losses = [], []
    for _ in range(options.steps):
        started = time.perf_counter()
        losses.append(_step(net, tree, optimizers))
        seconds.append(time.perf_counter() - started)
    if not all(map(math.isfinite, losses)):
        raise FloatingPointError(f"the losses are {losses}")
    trained = sum(p.numel() for p in net.parameters() if p.requires_grad)
    tokens_per_s = len(tree) / min(seconds[1:])
    kind = "trained" if options.adapter_rank is None else "frozen"
    products = sum(p.numel() for p in net.parameters()) - shape.vocabulary * shape.hidden
    trunk = trained_trunk(llama_config(shape), adapter_rank=options.adapter_rank)
    estimated = trunk.memory(len(tree), head_width=shape.head_width)
    return {
        "size": options.size,
        "parameters": sum(p.numel() for p in net.parameters()),
        "trained_parameters": trained,
        "adapter_rank": options.adapter_rank,
        "tokens": len(tree),
        "longest_path": max(tree.depths) + 1,
        "flex_attention": flex,
        "losses": losses,
        "first_step_s": seconds[0],
        "step_s": seconds[1:],
        "tokens_per_s": tokens_per_s,
        "share_of_arithmetic": _FLOPS[kind] * products * tokens_per_s / flops_per_s,
        "peak_memory_bytes": _peak(options.device),
        "estimated_memory_bytes": estimated.total,
    }


def build_trained_net(options: TrainingStep) -> QNet:
    """The net with what is to be trained, and gradient checkpointing."""
    dtype = torch.float32 if options.adapter_rank is None else torch.bfloat16
    shape = SHAPES[options.size]
    loaded = build_qnet(options.size, shape, seed=0, dtype=dtype, device=options.device)
    net: QNet = loaded.model
    if options.adapter_rank is not None:
        with_adapters(net, Lora(rank=options.adapter_rank))
    enable_gradient_checkpointing(net.trunk)
    net.train()
    return net


def episode_tree(tokens: int, *, vocabulary: int, rng: Random) -> PackedTree:
    """A packed tree as an episode's decision groups make it: candidates beside every step.

    Paths end at 8,192 tokens; then another episode begins.
    """
    tree = PackedTree()
    path: list[int] = []
    while len(tree) + _CANDIDATES * _CANDIDATE_TOKENS + _OBSERVATION_TOKENS <= tokens:
        if len(path) + _OBSERVATION_TOKENS + _CANDIDATE_TOKENS > _LONGEST_PATH:
            path = []
        path += _draw(rng, _OBSERVATION_TOKENS, vocabulary)
        stem = tree.add(path)[-1]
        candidates = [_draw(rng, _CANDIDATE_TOKENS, vocabulary) for _ in range(_CANDIDATES)]
        places = [QPlace(tree.extend(stem, said)[-1], rng.random()) for said in candidates]
        for place in places:
            tree.label(place)
        best, *others = sorted(places, key=lambda place: -place.q_value)
        tree.pairs += [(best, other) for other in others]
        path += candidates[0]
    return tree


def _draw(rng: Random, tokens: int, vocabulary: int) -> list[int]:
    return [rng.randrange(1, vocabulary) for _ in range(tokens)]


def _step(net: QNet, tree: PackedTree, optimizers: list[torch.optim.Optimizer]) -> float:
    """One optimizer step; its loss, which waits for the device."""
    with torch.autocast(net.device.type, torch.bfloat16):
        loss = loss_of_tree(net, tree, _OPTIONS)
    (loss.total / loss.weight).backward()
    nn.utils.clip_grad_norm_([p for p in net.parameters() if p.requires_grad], 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if net.device.type == "cuda":
        torch.cuda.synchronize()
    return float(loss.total.detach()) / loss.weight


def _reset_peak(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak(device: str) -> int | None:
    """Peak of the allocated device memory; None on a CPU, where nobody counts it."""
    return torch.cuda.max_memory_allocated() if device.startswith("cuda") else None


if __name__ == "__main__":
    json.dump(measure(TrainingStep.model_validate_json(sys.argv[1])), sys.stdout)
