"""Small trainings of a line through 64 points."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qguide.training.optimization.launch import in_processes
from qguide.training.optimization.options import Optimization
from qguide.training.optimization.trainer import Loop, Loss, Training

STEPS = [[[i % 64, (i + 7) % 64], [(i + 3) % 64]] for i in range(40)]

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


def train(
    output: Path,
    *,
    model: nn.Module | None = None,
    steps: Steps = STEPS,
    loss_of: LossOf = line_loss,
    size: Callable[[Any], int] = len,
    validate: Callable[[int], dict[str, float]] | None = None,
    steps_per_epoch: int = 0,
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
    training = Training(
        "line",
        steps,
        loss=loss_of(model),
        size=size,
        validate=validate,
        steps_per_epoch=steps_per_epoch,
    )

    def work() -> None:
        loop = Loop(model, optimization, output=output)
        inspect(loop)
        loop.run(training)

    in_processes(optimization, work)
    return model


def weights_of(model: nn.Module) -> torch.Tensor:
    """All weights of a model in one row, on the CPU."""
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])
