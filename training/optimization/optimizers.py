"""Optimizers and learning-rate schedule of the training loop."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn

from qguide.training.optimization.launch import all_reduce_sum, partition
from qguide.training.optimization.options import Optimization

# Of Muon (Jordan et al., 2024): few iterations bring all singular values near 1, to about 0.7 to
# 1.2, which serves as well as 1.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


def orthogonalise(matrix_NM: Tensor) -> Tensor:
    """Approximate U V^T of the singular value decomposition by quintic Newton-Schulz iterations."""
    a, b, c = _COEFFICIENTS
    # Transposed where it is tall, so that the Gram matrix is that of the shorter side.
    tall = matrix_NM.shape[0] > matrix_NM.shape[1]
    x: Tensor = matrix_NM.T if tall else matrix_NM
    # The Frobenius norm bounds the largest singular value: the iterations converge from at most 1.
    x = x / (x.norm() + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Orthogonalised Nesterov momentum, for matrices only."""

    def __init__(
        self, parameters: Iterable[Tensor], *, lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient; each process computes its share of updates."""
        for group in self.param_groups:
            matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
            directions = [self._direction(matrix, group["momentum"]) for matrix in matrices]
            updates = shared_map(orthogonalise, directions)
            for matrix, update in zip(matrices, updates, strict=True):
                scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * scale)

    def _direction(self, matrix: Tensor, momentum: float) -> Tensor:
        gradient = matrix.grad
        assert gradient is not None
        state = self.state[matrix]
        if not state:
            state["momentum"] = torch.zeros_like(matrix)
        velocity = state["momentum"].lerp_(gradient, 1 - momentum)
        # Nesterov's: the momentum as it will be once this gradient is in it.
        return torch.lerp(gradient, velocity, momentum)


def shared_map(function: Callable[[Tensor], Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Map tensors by a function that keeps their shape, with the work divided among processes."""
    if not distributed.is_initialized() or not tensors:
        return [function(tensor) for tensor in tensors]
    parts = partition([t.numel() for t in tensors], parts=distributed.get_world_size())
    mine = set(parts[distributed.get_rank()])
    results = [function(tensor) if i in mine else torch.zeros_like(tensor) for i, tensor in enumerate(tensors)]
    # Each result is computed by one process and is zero in all others, so the sum has them all.
    all_reduce_sum(results)
    return results


def cosine_with_warmup(step: int, *, steps: int, warmup_ratio: float) -> float:
    """Factor of the learning rate at `step`: linear warm-up to 1, then a cosine down to 0."""
    warmup = max(1, round(steps * warmup_ratio))
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


def build_optimizers(model: nn.Module, optimization: Optimization) -> list[torch.optim.Optimizer]:
    """AdamW alone, or Muon for the hidden matrices and AdamW for the rest."""
    trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    if optimization.optimizer == "adamw":
        return [_adamw([p for _, p in trainable], optimization)]
    hidden = [p for n, p in trainable if p.ndim == 2 and "layers" in n]
    chosen = {id(p) for p in hidden}
    rest = [p for _, p in trainable if id(p) not in chosen]
    if not hidden:  # a frozen trunk: only the value head learns
        return [_adamw(rest, optimization)]
    muon = Muon(hidden, lr=optimization.muon_lr, weight_decay=optimization.weight_decay)
    return [muon, _adamw(rest, optimization)]


def _adamw(parameters: list[nn.Parameter], optimization: Optimization) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=optimization.lr, betas=(0.9, 0.95), weight_decay=optimization.weight_decay)
