"""The DPO loss and preference pairs on any numbers."""

from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qguide.training.algorithms.preferences import value_pairs
from qguide.training.policy_training.dpo_loss import dpo_loss, implicit_q

logprobs = st.floats(min_value=-80, max_value=0)
betas = st.floats(min_value=0.01, max_value=2)


@given(st.lists(logprobs, min_size=2, max_size=2), betas)
def test_a_policy_that_is_its_reference_has_the_loss_of_a_coin(both: list[float], beta: float) -> None:
    policy = torch.tensor(both)
    chosen, rejected = implicit_q(policy, policy, beta=beta)
    assert float(dpo_loss(chosen, rejected)) == pytest.approx(log(2))


@given(st.lists(logprobs, min_size=4, max_size=4), betas)
def test_swapping_the_sides_turns_the_margin_around(values: list[float], beta: float) -> None:
    policy, reference = torch.tensor(values, dtype=torch.float64).view(2, 2)
    one, other = implicit_q(policy, reference, beta=beta)
    assert float(dpo_loss(one, other) - dpo_loss(other, one)) == pytest.approx(float(other - one), abs=1e-9)


@given(st.lists(st.integers(0, 5).map(float), max_size=6), st.integers(min_value=0, max_value=4))
def test_the_better_of_a_pair_has_the_higher_value(values: list[float], most: int) -> None:
    pairs = value_pairs(values, min_margin=0.5, most=most)
    everything = value_pairs(values, min_margin=0.5)
    assert all(values[better] > values[worse] for better, worse in pairs)
    assert set(pairs) <= set(everything)
    assert len(pairs) == (min(most, len(everything)) if most else len(everything))
