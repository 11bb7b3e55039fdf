"""Copies to the model's device, for which the host does not wait."""

from collections.abc import Sequence

import torch
from torch import Tensor

Numbers = Tensor | Sequence[int] | Sequence[float] | Sequence[Sequence[int]]


def upload(numbers: Numbers, device: torch.device, *, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor of these numbers on a device."""
    # `torch.tensor(…, device=…)` and an index that is a list wait until the device has run all that
    # was launched before them. What is copied from pinned memory takes its turn.
    made = numbers if isinstance(numbers, Tensor) else torch.tensor(numbers, dtype=dtype)
    if device.type == "cuda" and made.is_cpu:
        made = made.pin_memory()
    return made.to(device, dtype, non_blocking=True)
