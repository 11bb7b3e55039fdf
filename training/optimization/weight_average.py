"""Running mean of a model's weights over the last part of a training.

Two trainings of one recipe differ by more than their data explains, partly because of the last few
steps. The mean over many steps has less of this noise, at a negligible cost.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """Mean of a model's trainable weights over several steps."""

    def __init__(self) -> None:
        self.count = 0
        self._mean: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Include the current weights in the mean."""
        self.count += 1
        for name, parameter in _trainable(model):
            if name in self._mean:
                self._mean[name].lerp_(parameter.detach(), 1 / self.count)
            else:
                self._mean[name] = parameter.detach().clone()

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Use the mean as the model's weights during the block; an empty mean changes nothing."""
        if not self.count:
            yield
            return
        own = {name: parameter.detach().clone() for name, parameter in _trainable(model)}
        self.copy_to(model)
        try:
            yield
        finally:
            _copy(own, model)

    def copy_to(self, model: nn.Module) -> None:
        """Replace the model's weights by the mean; an empty mean changes nothing."""
        _copy(self._mean, model)

    def state_dict(self) -> dict[str, object]:
        """State for `load_state_dict`."""
        return {"count": self.count, "mean": self._mean}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restore a saved state."""
        count, mean = state["count"], state["mean"]
        assert isinstance(count, int)
        assert isinstance(mean, dict)
        self.count, self._mean = count, mean


def _trainable(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


@torch.no_grad()
def _copy(weights: dict[str, Tensor], model: nn.Module) -> None:
    for name, parameter in _trainable(model):
        if name in weights:
            parameter.copy_(weights[name])
