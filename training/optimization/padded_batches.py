"""Padded batches of token sequences of similar length.

Padding is on the right, and causal attention never looks to the right, so no attention mask is
needed. Lengths are not inferred from pad ids.
"""

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from random import Random
from typing import Final, TypeVar

import torch
from torch import Tensor

from qguide.training.optimization.options import Optimization

Epoch = list[list[list[int]]]
"""Training steps of one epoch: numbers of rows, by micro-batch."""
Row = TypeVar("Row", bound=Sized)
_NOISE: Final = 0.1
"""Share by which lengths are told wrong, so that micro-batches differ between epochs."""


@dataclass(frozen=True, slots=True)
class Sequence1D:
    """Tokens of one episode, and a float per token in each column that a loss needs."""

    token_ids: list[int]
    columns: dict[str, list[float]]

    def __len__(self) -> int:
        return len(self.token_ids)


def plan_epochs(
    pack: Callable[[Random], list[Row]], optimization: Optimization, *, seed: int, renewed: bool
) -> tuple[list[Row], list[Epoch]]:
    """The rows of all epochs, and the training steps of each over them.

    Args:
        renewed: rows are made anew for each epoch, because they are drawn; otherwise the same ones
            serve in all.
    """
    rows: list[Row] = []

    def lengths(rng: Random) -> list[int]:
        packed = pack(rng)
        rows.extend(packed)
        return [len(row) for row in packed]

    return rows, plan_lengths(lengths, optimization, seed=seed, renewed=renewed)


def plan_lengths(
    draw: Callable[[Random], Sequence[int]], optimization: Optimization, *, seed: int, renewed: bool
) -> list[Epoch]:
    """The training steps of each epoch, over rows of which only the lengths are known.

    Args:
        draw: makes the rows of an epoch, which follow those before, and returns their lengths.
    """
    rng = Random(seed)
    epochs: list[Epoch] = []
    lengths: Sequence[int] = ()
    first = 0
    for _ in range(optimization.epochs):
        if renewed or not epochs:
            first += len(lengths)
            lengths = draw(rng)
        steps = plan_steps(
            lengths, batch_tokens=optimization.batch_tokens, micro_batch_tokens=optimization.micro_batch_tokens, rng=rng
        )
        epochs.append([[[first + i for i in micro] for micro in step] for step in steps])
    return epochs


def plan_steps(lengths: Sequence[int], *, batch_tokens: int, micro_batch_tokens: int, rng: Random) -> Epoch:
    """Indices of each step's micro-batches for one epoch, every index once.

    Sequences of similar length share a micro-batch, with some noise so that epochs differ. The
    micro-batches are shuffled into steps of at least `batch_tokens`, apart from the last.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i] * rng.uniform(1 - _NOISE, 1 + _NOISE))
    micro_batches: list[list[int]] = []
    current: list[int] = []
    for index in order:
        wider = [lengths[i] for i in (*current, index)]
        if current and padded_tokens(wider) > micro_batch_tokens:
            micro_batches.append(current)
            current = []
        current.append(index)
    if current:
        micro_batches.append(current)
    rng.shuffle(micro_batches)
    return _group(micro_batches, lengths, batch_tokens)


def _group(micro_batches: list[list[int]], lengths: Sequence[int], batch_tokens: int) -> Epoch:
    steps: Epoch = []
    current: list[list[int]] = []
    tokens = 0
    for micro_batch in micro_batches:
        current.append(micro_batch)
        tokens += sum(lengths[i] for i in micro_batch)
        if tokens >= batch_tokens:
            steps.append(current)
            current, tokens = [], 0
    if current:
        steps.append(current)
    return steps


def padded_tokens(lengths: Sequence[int]) -> int:
    """Number of tokens in a micro-batch of these lengths, padding included."""
    return max(lengths) * len(lengths)


def pad_ids(rows: Sequence[Sequence1D]) -> Tensor:
    """(B, T) token ids, padded with zeros on the right."""
    return _pad([row.token_ids for row in rows], dtype=torch.long)


def pad_column(rows: Sequence[Sequence1D], name: str) -> Tensor:
    """(B, T) one column in float32, padded with zeros on the right."""
    return _pad([row.columns[name] for row in rows], dtype=torch.float32)


def _pad(rows: Sequence[Sequence[float]], *, dtype: torch.dtype) -> Tensor:
    tensors = [torch.tensor(row, dtype=dtype) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)
