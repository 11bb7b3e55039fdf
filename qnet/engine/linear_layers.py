"""Linear layers on a CPU by the faster of torch's two libraries.

In float32 torch takes MKL, which does not use AVX-512 on every CPU that has it: on one of AMD's
oneDNN, which torch takes for bfloat16, multiplied twice as fast. It is asked for directly where it
wins, with the same weights and no copy of them; training stays as it is.
"""

import time
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_FEWEST_ROWS = 4
"""Of fewer, reading the weights is what takes time."""
_FEWEST_WEIGHTS = 2**16
_FASTER = 1.2


class OneDnnLinear(nn.Linear):
    """A linear layer whose passes without gradients run in oneDNN."""

    def forward(self, input: Tensor) -> Tensor:
        """Outputs (…, N) of inputs (…, K)."""
        few = input.numel() < _FEWEST_ROWS * self.in_features
        if few or input.dtype != torch.float32 or self.weight.dtype != torch.float32 or torch.is_grad_enabled():
            return F.linear(input, self.weight, self.bias)
        return _multiply(input, self.weight, self.bias)


def speed_up_linear_layers(model: nn.Module) -> None:
    """Let a model's linear layers run in oneDNN, if they are on a CPU where it is faster."""
    for module in model.modules():
        # Not subclasses, whose forward is their own.
        large = type(module) is nn.Linear and module.weight.numel() >= _FEWEST_WEIGHTS
        if large and module.weight.device.type == "cpu" and one_dnn_is_faster():
            module.__class__ = OneDnnLinear


@cache
def one_dnn_is_faster() -> bool:
    """True if a product of a step's size takes oneDNN clearly less time."""
    if not torch.backends.mkldnn.is_available():
        return False
    input, weight = torch.randn(64, 512), torch.randn(512, 512)
    return _FASTER * _seconds(lambda: _multiply(input, weight, None)) < _seconds(lambda: F.linear(input, weight))


def _multiply(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")
    return found


@torch.inference_mode()
def _seconds(run: Callable[[], object]) -> float:
    times = []
    for _ in range(8):
        began = time.thread_time()
        run()
        times.append(time.thread_time() - began)
    return min(times)
