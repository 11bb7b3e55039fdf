"""Small trainings of a line through 64 points."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from torch import nn

from qguide.qnet.models.manifest import Manifest
from qguide.training.optimization.launch import in_processes
from qguide.training.optimization.objective import Loss, Objective
from qguide.training.optimization.options import Optimization
from qguide.training.optimization.trainer import Loop

STEPS = [[[i % 64, (i + 7) % 64], [(i + 3) % 64]] for i in range(40)]

FSDP_LAUNCHED = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
}
"""Variables by which `accelerate launch` asks for FSDP."""

Steps = Sequence[Sequence[list[int]]]
LossOf = Callable[[nn.Module], Callable[[list[int]], Loss]]


def line_loss(model: nn.Module) -> Callable[[list[int]], Loss]:
    """Summed squared error of the model at some of the points."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 4, generator=generator)
    y = x.sum(-1, keepdim=True)

    def loss(rows: list[int]) -> Loss:
        device = next(model.parameters()).device
        error = model(x[rows].to(device)) - y[rows].to(device)
        return Loss((error**2).sum(), float(len(rows)))

    return loss


def build_line() -> nn.Module:
    """A linear model with the same weights at every call."""
    torch.manual_seed(0)
    return nn.Linear(4, 1)


class Fit(Objective[nn.Module]):
    """A training whose micro-batches are lists of any whole numbers, such as rows or tokens."""

    title = "fit"
    one_pass = True

    def __init__(
        self,
        model: nn.Module,
        steps: Steps,
        loss: Callable[[list[int]], Loss],
        *,
        size: Callable[[Any], int] = len,
        validate: Callable[[], dict[str, float]] = dict,
    ) -> None:
        self.model, self.rows = model, ()
        self.epochs = [[list(step) for step in steps]]
        self._loss, self._size, self._validate = loss, size, validate

    def size(self, micro_batch: Sequence[int]) -> int:
        return self._size(micro_batch)

    def loss(self, micro_batch: Sequence[int]) -> Loss:
        return self._loss(list(micro_batch))

    def row_loss(self, number: int) -> Loss:
        return self._loss([number])

    def validate(self) -> dict[str, float]:
        return self._validate()

    def save(self, *_: object) -> Manifest:
        raise AssertionError("these trainings write nothing")


def train(
    output: Path,
    *,
    model: nn.Module | None = None,
    steps: Steps = STEPS,
    loss_of: LossOf = line_loss,
    size: Callable[[Any], int] = len,
    validate: Callable[[], dict[str, float]] = dict,
    inspect: Callable[[Loop[nn.Module]], None] = lambda _: None,
    **options: object,
) -> nn.Module:
    """Train a model, with a new line by default, and return it.

    Args:
        inspect: called with the loop before it runs.
    """
    output.mkdir(exist_ok=True)
    fields: dict[str, object] = {"lr": 0.2, "device": "cpu", "threads": 1}
    optimization = Optimization.model_validate(fields | options)
    model = model or build_line()
    objective = Fit(model, steps, loss_of(model), size=size, validate=validate)

    def work() -> None:
        loop = Loop(objective, optimization, output=output)
        inspect(loop)
        loop.run()

    in_processes(optimization, work)
    return model


def weights_of(model: nn.Module) -> torch.Tensor:
    """All weights of a model in one row, on the CPU."""
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


def build_sharded(state: Any, build: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Initialise accelerate's state so that processes on the CPU shard their model, as those on GPUs do."""
    build(state, *args, **kwargs)
    if state.distributed_type == DistributedType.MULTI_CPU:
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        state.distributed_type = DistributedType.FSDP
        state.fsdp_plugin = kwargs["fsdp_plugin"]
