"""Optimizers and learning-rate schedule of the training loop."""

import math

import torch
from torch import nn

from qguide.training.optimization.muon import Muon
from qguide.training.optimization.options import Optimization


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
    return torch.optim.AdamW(
        parameters,
        lr=optimization.lr,
        betas=(0.9, 0.95),
        weight_decay=optimization.weight_decay,
    )
