"""The group-relative loss of packed rows: which replies count, how often, and against what."""

import pytest
import torch
from torch import Tensor

from qguide.training.algorithms.choice_quality import PlacedChoice, ScoredChoice
from qguide.training.jobs.train_policy import advantages, groups_loss
from qguide.training.optimization.packed_replies import PackedReplies
from qguide.training.policy_training.options import GroupLossOptions

OLD = torch.tensor([-1.0, -2.0, -3.0, -4.0])


def packed(*groups: PlacedChoice) -> PackedReplies:
    row = PackedReplies()
    row.groups.extend(groups)
    return row


def group(replies: tuple[int, ...], values: tuple[float, ...], draws: tuple[int, ...]) -> PlacedChoice:
    n = len(replies)
    return PlacedChoice(replies, ScoredChoice((), [1.0] * n, [True] * n, draws, values=values))


def slopes(row: PackedReplies, policy: Tensor = OLD, **options: float) -> list[float]:
    own = policy.clone().requires_grad_()
    objective = GroupLossOptions.model_validate(options)
    loss = groups_loss(own, OLD, OLD, row, options=objective)
    [found] = torch.autograd.grad(loss.total / loss.weight, own)
    return [float(slope) for slope in found]


def test_each_draw_pulls_its_reply_by_its_advantage() -> None:
    row = packed(group((2, 0), (1.0, 0.0), (1, 3)))
    better, worse = advantages((1.0, 0.0), (1, 3))
    assert slopes(row) == pytest.approx([-3 * worse / 4, 0, -better / 4, 0], rel=1e-4)


def test_a_group_has_its_own_mean() -> None:
    row = packed(group((0, 1), (1.0, 0.0), (1, 1)), group((2, 3), (9.0, 8.0), (1, 1)))
    assert slopes(row) == pytest.approx([-0.25, 0.25, -0.25, 0.25], rel=1e-4)


def test_the_tie_to_the_reference_pulls_back() -> None:
    row = packed(group((0, 1), (0.5, 0.5), (1, 1)))
    moved = OLD + torch.tensor([1.0, -1.0, 0.0, 0.0])
    assert slopes(row, moved, kl=0.0) == [0.0] * 4
    above, below, *others = slopes(row, moved, kl=0.1)
    assert above > 0 > below
    assert others == [0.0, 0.0]
