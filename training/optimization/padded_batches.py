"""Padded batches of token sequences of similar length.

Padding is on the right, and causal attention never looks to the right, so no attention mask is
needed. Lengths are not inferred from pad ids.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sequence1D:
    """Tokens of one episode, and a float per token in each column that a loss needs."""

    token_ids: list[int]
    columns: dict[str, list[float]]


def plan_steps(
    lengths: Sequence[int],
    *,
    batch_tokens: int,
    micro_batch_tokens: int,
    rng: random.Random,
    noise: float = 0.1,
) -> list[list[list[int]]]:
    """Indices of each step's micro-batches for one epoch, every index once.

    Sequences of similar length share a micro-batch, with some noise so that epochs differ. The
    micro-batches are shuffled into steps of at least `batch_tokens`, apart from the last.
    """
    order = sorted(
        range(len(lengths)), key=lambda i: lengths[i] * rng.uniform(1 - noise, 1 + noise)
    )
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


def _group(
    micro_batches: list[list[int]], lengths: Sequence[int], batch_tokens: int
) -> list[list[list[int]]]:
    steps: list[list[list[int]]] = []
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
