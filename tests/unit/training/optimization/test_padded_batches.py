"""Epochs as padded batches: everything once, nothing too wide."""

import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from qguide.training.optimization.padded_batches import Sequence1D, pad_column, pad_ids, plan_steps

lengths = st.lists(st.integers(1, 60), min_size=1, max_size=80)


@given(lengths, st.integers(0, 99))
def test_an_epoch_takes_every_sequence_once_and_keeps_to_the_limit(given_lengths: list[int], seed: int) -> None:
    steps = plan_steps(given_lengths, batch_tokens=100, micro_batch_tokens=64, rng=random.Random(seed))
    micro_batches = [micro_batch for step in steps for micro_batch in step]
    assert sorted(i for m in micro_batches for i in m) == list(range(len(given_lengths)))
    assert all(max(given_lengths[i] for i in m) * len(m) <= 64 for m in micro_batches)


@given(lengths)
def test_all_steps_but_the_last_are_full(given_lengths: list[int]) -> None:
    steps = plan_steps(given_lengths, batch_tokens=50, micro_batch_tokens=64, rng=random.Random(0))
    tokens = [sum(given_lengths[i] for m in step for i in m) for step in steps]
    assert all(count >= 50 for count in tokens[:-1])


def test_padding_stands_on_the_right_and_weighs_nothing() -> None:
    rows = [Sequence1D([5, 6, 7], {"weight": [1.0, 1.0, 1.0]}), Sequence1D([8], {"weight": [1.0]})]
    assert torch.equal(pad_ids(rows), torch.tensor([[5, 6, 7], [8, 0, 0]]))
    assert pad_column(rows, "weight")[1].tolist() == [1.0, 0.0, 0.0]
