"""A small Q model of recorded candidates: two layers, from scratch.

Alone it reads a candidate by itself, and what its words and its form have earned in other tasks. In
its group it also reads how the candidate stands among the others that were drawn: agreement, and
its numbers less the group's mean.

Loss of a group: cross-entropy of each candidate's success, and of the softmax over the group where
its outcomes differ. The weights are kept that have the least loss on held-back tasks of training.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import lsmr
from torch import Tensor, nn
from torch.nn import functional

from qguide.training.choosing.options import Training
from qguide.training.choosing.table import Floats, Ints, Table, group_numbers

_DAMP: Final = 10**0.5
"""Root of the ridge's penalty, as lsmr takes it."""
_ITERATIONS: Final = 10
_PARTS: Final = 5


class SmallQ(nn.Module):
    """Logit of success of each candidate of a group."""

    def __init__(self, width: int, options: Training) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, options.hidden),
            nn.GELU(),
            nn.Dropout(options.dropout),
            nn.Linear(options.hidden, options.hidden),
            nn.GELU(),
            nn.Dropout(options.dropout),
            nn.Linear(options.hidden, 1),
        )

    def forward(self, numbers_GMF: Tensor) -> Tensor:
        """(g, m) logits."""
        logits: Tensor = self.layers(numbers_GMF).squeeze(2)
        return logits


Scorer = Callable[[Ints], Floats]
"""Logits of groups of candidates."""


def train_small_q(
    table: Table, groups: Ints, held_back: Ints, options: Training, *, credit: Floats, in_group: bool, seed: int
) -> Scorer:
    """A Q model of these groups.

    Args:
        credit: (n, k) of each candidate in these groups, as `credits_of` finds it.
        held_back: groups of other tasks, by which training ends.
        in_group: read how a candidate stands among the others.
    """
    torch.manual_seed(seed)
    read = _Reader(table, groups, credit, in_group=in_group)
    model = SmallQ(read.width, options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=options.decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=options.lr, total_steps=options.steps)
    held = _Batch.of(read, held_back)
    rng = np.random.default_rng(seed)
    best, best_loss, looks = model.state_dict(), float("inf"), 0
    for step in range(options.steps):
        rows = groups[rng.integers(len(groups), size=options.batch)]
        optimizer.zero_grad()
        _loss(model, _Batch.of(read, rows), options).backward()
        optimizer.step()
        schedule.step()
        if step % 25 == 24:
            looks += 1
            if (loss := _held_back_loss(model, held, options)) < best_loss:
                best_loss, looks = loss, 0
                best = {name: value.clone() for name, value in model.state_dict().items()}
            elif looks >= options.patience:
                break
    model.load_state_dict(best)
    return lambda groups: _scores(model, read, groups)


def credits_of(table: Table, groups: Ints) -> Floats:
    """(n, 2) what each candidate's words, and its form, have earned in other tasks, beyond those tasks' means.

    Each is a ridge regression. For tasks of the groups it has learned from other tasks of them,
    so that no candidate is read by what it earned itself; for all others, from all groups.
    """
    rows = np.unique(groups)
    tasks, rewards = table.tasks[rows], table.rewards[rows]
    counts = np.bincount(tasks, minlength=len(table.task_names))
    means = np.bincount(tasks, rewards, minlength=len(counts)) / np.maximum(counts, 1)
    gains = rewards - means[tasks]
    part = np.random.default_rng(0).permutation(len(counts))[tasks] % _PARTS
    return np.column_stack([_credit(read, rows, gains, part) for read in (table.words, table.forms)])


def _credit(read: Any, rows: Ints, gains: NDArray[np.float64], part: Ints) -> Floats:
    """(n,) what the columns of each candidate have gained in the rows of other parts."""

    def weights(kept: NDArray[np.bool_]) -> NDArray[np.float64]:
        return lsmr(read[rows[kept]], gains[kept], damp=_DAMP, atol=0, btol=0, maxiter=_ITERATIONS)[0]

    credit: Floats = (read @ weights(np.ones(len(rows), np.bool_))).astype(np.float32)
    for k in np.unique(part):
        own = part == k
        credit[rows[own]] = read[rows[own]] @ weights(~own)
    return credit


class _Reader:
    """Tensors of groups; numbers are scaled by their deviation in training."""

    def __init__(self, table: Table, groups: Ints, credit: Floats, *, in_group: bool) -> None:
        self.table, self.in_group = table, in_group
        self._numbers = np.concatenate([table.numbers, credit], axis=1)
        sample = self._raw(groups[:: max(1, len(groups) // 2_000)])
        flat = sample.reshape(-1, sample.shape[2])
        self._mean, self._scale = flat.mean(axis=0), flat.std(axis=0) + 1e-3
        self.width = flat.shape[1]

    def _raw(self, groups: Ints) -> Floats:
        own: Floats = self._numbers[groups]
        if not self.in_group:
            return own
        return np.concatenate([own, group_numbers(self.table, groups, own)], axis=2)

    def tensor(self, groups: Ints) -> Tensor:
        return torch.from_numpy(np.clip((self._raw(groups) - self._mean) / self._scale, -5, 5))


@dataclass(frozen=True, slots=True)
class _Batch:
    """Tensors (g, m, f) of numbers and (g, m) of rewards."""

    numbers: Tensor
    rewards: Tensor

    @classmethod
    def of(cls, read: _Reader, groups: Ints) -> "_Batch":
        rewards = torch.from_numpy(read.table.rewards[groups])
        return cls(read.tensor(groups), rewards.clamp(0, 1))


def _loss(model: SmallQ, batch: _Batch, options: Training) -> Tensor:
    rewards, logits = batch.rewards, model(batch.numbers)
    success = functional.binary_cross_entropy_with_logits(logits, rewards)
    differ = rewards.max(dim=1).values > rewards.min(dim=1).values
    if not differ.any():
        return success
    shares = rewards[differ] / rewards[differ].sum(dim=1, keepdim=True)
    ranked = functional.cross_entropy(logits[differ], shares)
    return success + options.ranking * ranked


def _held_back_loss(model: SmallQ, held: _Batch, options: Training) -> float:
    model.eval()
    with torch.no_grad():
        loss = float(_loss(model, held, options))
    model.train()
    return loss


def _scores(model: SmallQ, read: _Reader, groups: Ints) -> Floats:
    model.eval()
    with torch.no_grad():
        parts = [model(read.tensor(part)).numpy() for part in np.array_split(groups, max(1, len(groups) // 2_000))]
    return np.concatenate(parts)
