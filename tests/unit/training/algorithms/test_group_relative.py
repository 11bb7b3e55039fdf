"""Group-relative advantages and the clipped loss, worked out by hand."""

from math import sqrt
from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qguide.training.jobs.train_policy import advantages, clipped_loss, divergence

GROUPS = st.lists(
    st.tuples(st.integers(min_value=-4, max_value=4), st.integers(min_value=1, max_value=5)), min_size=1, max_size=6
)


def test_advantages_are_over_the_mean_draw_in_standard_deviations() -> None:
    # Four draws, 1 0 0 0: their mean is 1/4 and their variance 3/16.
    assert advantages((1.0, 0.0), (1, 3)) == pytest.approx([sqrt(3), -1 / sqrt(3)])
    assert advantages((1.0, 0.0), (1, 3), normalization="none") == [0.75, -0.25]


def test_a_group_of_equal_values_has_no_advantage() -> None:
    assert advantages((0.3, 0.3, 0.3), (1, 2, 1)) == [0.0, 0.0, 0.0]


@given(group=GROUPS)
def test_the_draws_of_a_group_have_mean_0_and_deviation_1(group: list[tuple[int, int]]) -> None:
    values, draws = zip(*group, strict=True)
    found = advantages(values, draws)
    assert fmean(found, weights=draws) == pytest.approx(0, abs=1e-6)
    if len(set(values)) > 1:
        assert fmean([a * a for a in found], weights=draws) == pytest.approx(1)


def loss_and_slope(ratio: float, advantage: float) -> tuple[float, float]:
    """The loss of one reply whose probability has changed by a factor, and its slope in log pi."""
    old = torch.tensor([-3.0])
    policy = (old + torch.tensor([ratio]).log()).requires_grad_()
    loss = clipped_loss(policy, old, torch.tensor([advantage]), clip=0.2)
    [slope] = torch.autograd.grad(loss.sum(), policy)
    return float(loss.detach()), float(slope)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),  # at the start: the gradient of -A log pi
        (1.0, -2.0, 2.0, 2.0),
        (1.5, 2.0, -2.4, 0.0),  # more likely by enough
        (0.5, -2.0, 1.6, 0.0),  # less likely by enough
        (0.5, 2.0, -1.0, -1.0),  # the wrong way: no clip holds it back
        (1.5, -2.0, 3.0, 3.0),
    ],
)
def test_the_loss_rewards_no_change_beyond_the_clip(ratio: float, advantage: float, loss: float, slope: float) -> None:
    assert loss_and_slope(ratio, advantage) == pytest.approx((loss, slope), rel=1e-4)


def test_the_divergence_is_0_at_the_reference_and_grows_on_both_sides() -> None:
    reference = torch.tensor([-3.0, -3.0, -3.0])
    policy = torch.tensor([-3.0, -2.0, -4.0], requires_grad=True)
    found: Tensor = divergence(policy, reference)
    assert found.detach().tolist() == [0.0, 0.5, 0.5]
    [slope] = torch.autograd.grad(found.sum(), policy)
    assert float(slope[0]) == 0.0
    assert float(slope[1]) > 0 > float(slope[2])
