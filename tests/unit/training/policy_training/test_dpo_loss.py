"""The loss of preference pairs of several levels, by hand."""

from math import exp, log

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from qguide.training.data.preferences import Level
from qguide.training.optimization.packed_replies import PackedPair, PackedReplies
from qguide.training.policy_training.dpo_loss import PairWeights, pairs_loss
from qguide.training.policy_training.options import DpoLossOptions, LevelWeights

# Log-probabilities of six replies under the policy and under its reference.
POLICY = torch.tensor([-2.0, -4.0, -1.0, -3.0, -6.0, -5.0])
REFERENCE = torch.tensor([-3.0, -3.0, -2.0, -2.0, -5.0, -6.0])
BETA = 0.5


def row(*pairs: tuple[int, int, Level]) -> PackedReplies:
    packed = PackedReplies()
    packed.pairs += [PackedPair(chosen, rejected, level) for chosen, rejected, level in pairs]
    return packed


ROW = row((0, 1, "trajectory"), (2, 3, "suffix"), (4, 5, "suffix"))
"""Margins 0.5 * ((1) - (-1)) = 1, 0.5 * (1 - (-1)) = 1 and 0.5 * (-1 - 1) = -1."""


def mean_loss(objective: DpoLossOptions, *rows: PackedReplies, policy: Tensor = POLICY) -> float:
    """The mean that a step over all rows has."""
    weights = PairWeights.of(objective, rows)
    losses = [pairs_loss(policy, REFERENCE, row, weights=weights, beta=objective.beta) for row in rows]
    return float(sum(loss.total for loss in losses)) / sum(loss.weight for loss in losses)


def softplus(margin: float) -> float:
    return log(1 + exp(-margin))


def test_levels_add_up_their_own_means_as_in_equation_10() -> None:
    objective = DpoLossOptions(beta=BETA, mixture="levels", weights=LevelWeights(sft=1.0))
    outcome_dpo = softplus(1)
    step_dpo = (softplus(1) + softplus(-1)) / 2
    sft = 2.0  # -log pi of reply 0
    assert mean_loss(objective, ROW) == pytest.approx(outcome_dpo + step_dpo + sft)


def test_the_mixture_does_not_depend_on_the_rows_that_hold_the_pairs() -> None:
    objective = DpoLossOptions(beta=BETA, mixture="levels", weights=LevelWeights(suffix=3.0, trajectory=0.5, sft=0.25))
    apart = (row((4, 5, "suffix")), row((2, 3, "suffix"), (0, 1, "trajectory")))
    expected = 0.5 * softplus(1) + 3 * (softplus(1) + softplus(-1)) / 2 + 0.25 * 2
    assert mean_loss(objective, *apart) == pytest.approx(expected)
    assert mean_loss(objective, ROW) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"trajectory": 0.0, "sft": 1.0}, (softplus(1) + softplus(-1)) / 2 + 2.0),
        ({"suffix": 0.0, "sft": 1.0}, softplus(1) + 2.0),
        ({"suffix": 0.0}, softplus(1)),
    ],
)
def test_a_level_of_weight_0_is_left_out_and_imitation_stays(weights: dict[str, float], expected: float) -> None:
    objective = DpoLossOptions(beta=BETA, mixture="levels", weights=LevelWeights(**weights))
    assert mean_loss(objective, ROW) == pytest.approx(expected)


def test_one_mean_over_all_pairs_has_no_level_of_weight_0() -> None:
    with pytest.raises(ValidationError, match=r'weights\.suffix is 0, .*mixture = "levels"'):
        DpoLossOptions(weights=LevelWeights(suffix=0.0))


def test_pairs_are_one_weighted_mean() -> None:
    objective = DpoLossOptions(beta=BETA, weights=LevelWeights(trajectory=2.0, sft=1.0))
    total = 2 * softplus(1) + softplus(1) + softplus(-1) + 2.0
    assert mean_loss(objective, ROW) == pytest.approx(total / 4)


def test_without_whole_trajectories_there_is_nothing_to_imitate() -> None:
    objective = DpoLossOptions(beta=BETA, mixture="levels", weights=LevelWeights(sft=1.0))
    assert mean_loss(objective, row((2, 3, "suffix"))) == pytest.approx(softplus(1))


def test_imitation_pulls_the_chosen_trajectory_up_and_nothing_else() -> None:
    def slopes(sft: float) -> Tensor:
        policy = POLICY.clone().requires_grad_()
        objective = DpoLossOptions(beta=BETA, mixture="levels", weights=LevelWeights(sft=sft))
        weights = PairWeights.of(objective, [ROW])
        loss = pairs_loss(policy, REFERENCE, ROW, weights=weights, beta=BETA)
        [found] = torch.autograd.grad(loss.total / loss.weight, policy)
        return found

    assert (slopes(1.0) - slopes(0.0)).tolist() == pytest.approx([-1, 0, 0, 0, 0, 0])
