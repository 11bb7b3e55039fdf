"""Weights to keep: their running mean over the last part of a training, and the best epoch's.

Two trainings of one recipe differ by more than their data explains, partly because of the last few
steps. The mean over many steps has less of this noise, at a negligible cost.

The best epoch is that of the best choices among held-back candidates. A success rate is a poor
criterion, because the difference between two nets on a hundred games is mostly luck. Rank
correlation and regret are measured on thousands of held-back decisions.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from qguide.training.optimization.options import Criterion

WEIGHTS: Final = "best_weights.pt"
FIGURES: Final = "best_figures.json"


class BestWeights:
    """The best epoch so far, saved in the run folder so that a resumed run knows it.

    Args:
        criterion: the figure by which epochs are compared; "last" saves nothing.
    """

    def __init__(self, folder: Path, criterion: Criterion) -> None:
        self._weights, self._figures = folder / WEIGHTS, folder / FIGURES
        self._criterion = criterion

    def is_beaten_by(self, figures: Mapping[str, float]) -> bool:
        """True if an epoch with these figures is to be saved: no earlier one was better."""
        if self._criterion == "last" or self._criterion not in figures:
            return False
        return not (self._figures.is_file() and self._is_better(self.figures, figures))

    def save(self, weights: Mapping[str, Tensor], figures: Mapping[str, float]) -> None:
        """Keep the weights of an epoch instead of those saved before."""
        unfinished = self._weights.with_suffix(".partial")
        torch.save(dict(weights), unfinished)
        unfinished.replace(self._weights)
        unfinished = self._figures.with_suffix(".partial")
        unfinished.write_text(json.dumps(figures))
        unfinished.replace(self._figures)

    def load(self) -> dict[str, Any] | None:
        """The saved weights; None if the last epoch's are to be kept."""
        if self._criterion == "last" or not self._figures.is_file():
            return None
        weights: dict[str, Any] = torch.load(self._weights, map_location="cpu", weights_only=True)
        return weights

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the saved weights."""
        figures: dict[str, Any] = json.loads(self._figures.read_text())
        return figures

    def _is_better(self, figures: Mapping[str, float], others: Mapping[str, float]) -> bool:
        one, other = figures[self._criterion], others[self._criterion]
        return one < other if self._criterion == "regret_steps" else one > other


class WeightAverage:
    """Mean of a model's trainable weights over several steps.

    Args:
        model: the model; FSDP may have sharded its weights, and then the mean is sharded alike.
    """

    def __init__(self, model: nn.Module) -> None:
        self.count = 0
        self._model = model
        self._mean: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self) -> None:
        """Include the current weights in the mean."""
        self.count += 1
        for name, parameter in self._trainable():
            if name in self._mean:
                self._mean[name].lerp_(parameter.detach(), 1 / self.count)
            else:
                self._mean[name] = parameter.detach().clone()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the mean as the model's weights during the block; an empty mean changes nothing."""
        if not self.count:
            yield
            return
        own = {name: parameter.detach().clone() for name, parameter in self._trainable()}
        self.apply()
        try:
            yield
        finally:
            self._copy(own)

    def apply(self) -> None:
        """Replace the model's weights by the mean; an empty mean changes nothing."""
        self._copy(self._mean)

    def full_mean(self) -> dict[str, Tensor]:
        """The mean with whole weights, on the CPU; all processes have to call this."""
        return {
            name: (mean.full_tensor() if isinstance(mean, DTensor) else mean).cpu() for name, mean in self._mean.items()
        }

    def load(self, mean: Mapping[str, Tensor], count: int) -> None:
        """Continue from a mean over `count` steps, with whole weights."""
        self.count = count
        self._mean = {name: _placed(mean[name], like) for name, like in self._trainable()}

    def _trainable(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, p) for name, p in self._model.named_parameters() if p.requires_grad)

    @torch.no_grad()
    def _copy(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in self._trainable():
            if name in weights:
                parameter.copy_(weights[name])


def _placed(weight: Tensor, like: Tensor) -> Tensor:
    weight = weight.to(like.device)
    if isinstance(like, DTensor):
        return distribute_tensor(weight, like.device_mesh, like.placements)
    return weight
