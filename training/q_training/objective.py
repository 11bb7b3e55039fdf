"""Loss of a packed tree: regression, and ranking among siblings.

The regression is equation 11 of QLASS. An agent needs the order of a state's candidates, whose Q
differ far less than those of states, so a term on the differences between siblings is added (ours).
"""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn.functional import softplus

from training.optimization.packed_trees import PackedTree, Pair
from training.optimization.trainer import Loss

RankingLoss = Literal["order", "root", "regret"]
_POWER: dict[RankingLoss, float] = {"order": 0.0, "root": 0.5, "regret": 1.0}


class Objective(BaseModel):
    """Options of the loss.

    Attributes:
        ranking_weight: of softplus(-(Q(s, a) - Q(s, a')) / ranking_scale) over sibling pairs with
            q(a) > q(a'); ours, 0 is the paper.
        ranking: weight of a pair, ((q(a) - q(a')) / ranking_scale) to the power of 0 ("order": Q
            learns which action is better more often), 1 ("regret": which is better on the whole)
            or 1/2 ("root").
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ranking_weight: float = Field(default=0.0, ge=0)
    ranking_scale: float = Field(default=0.1, gt=0)
    ranking: RankingLoss = "order"


def tree_loss(q_T: Tensor, tree: PackedTree, objective: Objective) -> Loss:
    """Weighted squared error on every labelled position, plus the sibling ranking term.

    Args:
        q_T: Q at every token of the tree.
    """
    weight_T = torch.tensor(tree.weight)
    total = (weight_T * (q_T - torch.tensor(tree.target)) ** 2).sum()
    if objective.ranking_weight and tree.pairs:
        ranking_P = softplus(-margins(q_T, tree.pairs) / objective.ranking_scale)
        gap_P = label_gaps(tree.pairs) / objective.ranking_scale
        counted_P = ranking_P * gap_P ** _POWER[objective.ranking]
        total = total + objective.ranking_weight * counted_P.sum()
    return Loss(total, float(weight_T.sum()))


def label_gaps(pairs: Sequence[Pair]) -> Tensor:
    """(P,) difference of the labels of each pair."""
    return torch.tensor([better.q_value - worse.q_value for better, worse in pairs])


def margins(q_T: Tensor, pairs: Sequence[Pair]) -> Tensor:
    """(P,) Q of the better action minus Q of the worse one."""
    better = torch.tensor([a.position for a, _ in pairs])
    worse = torch.tensor([b.position for _, b in pairs])
    return q_T[better] - q_T[worse]
