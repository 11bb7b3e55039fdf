"""Loss of a packed tree: regression or classification, ranking, progress, a world model.

The regression is equation 11 of QLASS. An agent needs the right order of one state's candidates,
whose Q-values differ far less than those of different states, so a term on the differences between
siblings is added (ours). The answer to an action tells much about its value, so the same forward
pass may also learn to predict the answer (ours).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from qguide.qnet.engine.kernels import upload
from qguide.training.optimization.objective import Loss
from qguide.training.optimization.packed_trees import PackedTree, Pair
from qguide.training.q_training.options import QNetLossOptions, RankingLoss

_POWER: dict[RankingLoss, float] = {"order": 0.0, "root": 0.5, "regret": 1.0}


def tree_loss(q_T: Tensor, tree: PackedTree, objective: QNetLossOptions, *, error_T: Tensor | None = None) -> Loss:
    """Weighted error on every labelled position, plus the terms on siblings and on progress.

    Args:
        q_T: Q at every token of the tree.
        error_T: error at each token; None computes the squared error.
    """
    if error_T is None:
        error_T = (q_T - upload(tree.target, q_T.device)) ** 2
    total = (upload(tree.weight, q_T.device) * error_T).sum()
    if objective.ranking_weight and tree.pairs:
        ranking_P = softplus(-margins(q_T, tree.pairs) / objective.ranking_scale)
        gap_P = label_gaps(tree.pairs, q_T.device) / objective.ranking_scale
        counted_P = ranking_P * gap_P ** _POWER[objective.ranking]
        total = total + objective.ranking_weight * counted_P.sum()
    if objective.progress_weight and tree.successions:
        progress_S = margins(q_T, tree.successions)
        error_S = (progress_S - label_gaps(tree.successions, q_T.device)) ** 2
        total = total + objective.progress_weight * error_S.sum()
    return Loss(total, sum(tree.weight))


def hl_gauss_error(logits_TK: Tensor, target_T: Tensor, edges: Tensor) -> Tensor:
    """(T,) cross-entropy with each target's Gaussian over the bins (Farebrother et al., 2024).

    The Gaussian's standard deviation is 3/4 of a bin's width, as in the paper; its tails outside
    the bins are cut off.
    """
    sigma = 0.75 * (edges[1] - edges[0])
    below_TE = torch.special.ndtr((edges - target_T[:, None]) / sigma)
    share_TK = below_TE.diff(dim=-1)
    share_TK = share_TK / (below_TE[:, -1:] - below_TE[:, :1])
    error_T: Tensor = -(share_TK * logits_TK.log_softmax(-1)).sum(-1)
    return error_T


def world_loss(
    hidden_TD: Tensor, tree: PackedTree, objective: QNetLossOptions, vocabulary_logits: Callable[[Tensor], Tensor]
) -> Tensor:
    """Weighted -log p of the tokens that the environment wrote after the tree's actions.

    Args:
        hidden_TD: the trunk's hidden state at every token of the tree.
        vocabulary_logits: computes logits (N, V) from hidden states (N, D).
    """
    total = hidden_TD.new_zeros(())
    for weight, token_of_place in (
        (objective.observation_weight, [(tree.before[i], tree.token_ids[i]) for i in tree.observed]),
        (objective.outcome_weight, list(tree.outcomes.items())),
    ):
        if weight and token_of_place:
            places, tokens = zip(*token_of_place, strict=True)
            logits_NV = vocabulary_logits(hidden_TD[upload(places, hidden_TD.device)]).float()
            token_N = upload(tokens, logits_NV.device)
            nll = cross_entropy(logits_NV, token_N, reduction="sum")
            total = total + weight * nll
    return total


def label_gaps(pairs: Sequence[Pair], device: torch.device) -> Tensor:
    """(P,) first label minus second of each pair."""
    return upload([better.q_value - worse.q_value for better, worse in pairs], device)


def margins(q_T: Tensor, pairs: Sequence[Pair]) -> Tensor:
    """(P,) Q of the first action of each pair minus Q of the second, its better one first."""
    better = upload([a.position for a, _ in pairs], q_T.device, dtype=torch.long)
    worse = upload([b.position for _, b in pairs], q_T.device, dtype=torch.long)
    return q_T[better] - q_T[worse]
