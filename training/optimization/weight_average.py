"""Running mean of a model's weights over the last part of a training.

Two trainings of one recipe differ by more than their data explains, partly because of the last few
steps. The mean over many steps has less of this noise, at a negligible cost.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


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
            name: (mean.full_tensor() if isinstance(mean, DTensor) else mean).cpu()
            for name, mean in self._mean.items()
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
    """The weight on the device, and with the shards, of another one."""
    weight = weight.to(like.device)
    if isinstance(like, DTensor):
        return distribute_tensor(weight, like.device_mesh, like.placements)
    return weight
