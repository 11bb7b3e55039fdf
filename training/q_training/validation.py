"""Validation of a QNet by its ranking of held-back candidates, before any episode is played."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from qguide.qnet.engine.kernels import upload
from qguide.qnet.engine.model_memory import in_float32
from qguide.qnet.engine.tree_attention import tree_inputs
from qguide.qnet.engine.tree_branches import has_recurrent_layers, outputs_of_tree
from qguide.qnet.engine.windows import choosing_few
from qguide.qnet.errors import ConfigError
from qguide.qnet.models.qnet import QNet
from qguide.training.algorithms.choice_quality import ScoredChoice, choice_quality
from qguide.training.optimization.packed_trees import PackedTree
from qguide.training.q_training.loss_terms import label_gaps, margins

_PACKING_TOLERANCE = 1e-4


def q_of_tree(qnet: QNet, tree: PackedTree) -> Tensor:
    """(T,) Q at every token of a packed tree."""
    q_T: Tensor = qnet.head(hidden_of_tree(qnet, tree), features_of_tree(qnet, tree))
    return q_T


def features_of_tree(qnet: QNet, tree: PackedTree) -> Tensor | None:
    """(T, F) the head's inputs besides the hidden states, on the net's device, if there are any."""
    features_TF = tree.features_TF
    return None if features_TF is None else upload(features_TF, qnet.device)


def hidden_of_tree(qnet: QNet, tree: PackedTree) -> Tensor:
    """(T, D) the trunk's last hidden state at every token of a packed tree."""
    if not has_recurrent_layers(qnet.trunk):
        return qnet.hidden_states(**tree_inputs(tree, qnet.device))[0]

    def run(ids_BT: Tensor, read_N: Tensor, **options: Any) -> tuple[Tensor, Any]:
        output = qnet.trunk(input_ids=ids_BT, **{"use_cache": False} | options)
        return output.last_hidden_state.flatten(0, 1)[read_N], output

    return outputs_of_tree(qnet.trunk, run, tree, range(len(tree)))


@torch.no_grad()
def require_packable(qnet: QNet) -> None:
    """Check that hidden states of a packed tree equal those of each path alone."""
    with in_float32(qnet), choosing_few(qnet):
        _compare_packed(qnet)


def _compare_packed(qnet: QNet) -> None:
    trunk = type(qnet.trunk).__name__
    tree = PackedTree()
    for path in two_branches(qnet.trunk.config):
        # The first branch has nothing before it in the row; the second may see the first.
        places = tree.add(path)
        try:
            alone_TD = qnet.hidden_states(torch.tensor([path], device=qnet.device))[0]
            packed_TD = hidden_of_tree(qnet, tree)
        except Exception as error:  # each architecture has its own
            raise ConfigError(
                f"{trunk} fails on a packed tree ({type(error).__name__}: {error}); its layers "
                "take another attention mask, so train another model"
            ) from error
        require_same(trunk, packed_TD[places], alone_TD)


def two_branches(config: PretrainedConfig) -> list[list[int]]:
    """Paths of six and eight tokens, from all over the vocabulary, that share their first four."""
    step = config.get_text_config().vocab_size // 12
    return [[step * i for i in (*range(4), *branch)] for branch in (range(4, 6), range(8, 12))]


def require_same(model: str, packed: Tensor, alone: Tensor) -> None:
    """Refuse a model whose outputs for a path alone and in its tree differ."""
    difference = float((packed - alone).abs().max())
    if not difference <= _PACKING_TOLERANCE * max(1.0, float(alone.abs().max())):
        raise ConfigError(
            f"{model} gives values that differ by {difference:.2g} between a path alone and the "
            f"same path in its tree (at most {_PACKING_TOLERANCE:g} is allowed, relative to the "
            "values); its layers ignore the attention mask, so train another model"
        )


@torch.no_grad()
def validate(qnet: QNet, trees: Sequence[PackedTree], groups: Sequence[PackedTree]) -> dict[str, float]:
    """Figures of held-back trees and held-back decision groups, if there are any."""
    qnet.eval()
    figures: dict[str, float] = {}
    accuracy, accuracy_by_gap, pairs = sibling_accuracy((q_of_tree(qnet, t), t) for t in trees)
    if pairs:
        figures |= {"sibling_accuracy": accuracy, "sibling_accuracy_by_gap": accuracy_by_gap, "sibling_pairs": pairs}
    if groups:
        figures |= choice_quality(scored_choices(qnet, groups))
    return figures


@torch.no_grad()
def scored_choices(qnet: QNet, groups: Sequence[PackedTree]) -> list[ScoredChoice]:
    """The decisions of packed groups with the net's Q."""
    qnet.eval()
    scored = ((q_of_tree(qnet, tree).tolist(), tree) for tree in groups)
    return [group.scored(own) for own, tree in scored for group in tree.groups]


def sibling_accuracy(scored: Iterable[tuple[Tensor, PackedTree]]) -> tuple[float, float, int]:
    """Share of sibling pairs that Q puts in the right order; nan without pairs.

    Args:
        scored: (T,) Q at every token of a tree, and the tree.

    Returns:
        The share of all pairs, the share with each pair weighted by the difference of its labels,
        and the number of pairs. The first shows how often actions are misjudged, the second how
        much it costs.
    """
    right, right_by_gap, pairs, gaps = 0.0, 0.0, 0, 0.0
    for q_T, tree in scored:
        if tree.pairs:
            margin_P = margins(q_T, tree.pairs)
            right_P = (margin_P > 0).float() + 0.5 * (margin_P == 0).float()
            gap_P = label_gaps(tree.pairs, margin_P.device)
            right += float(right_P.sum())
            right_by_gap += float((right_P * gap_P).sum())
            pairs += len(tree.pairs)
            gaps += float(gap_P.sum())
    if not pairs:
        return float("nan"), float("nan"), 0
    return right / pairs, right_by_gap / gaps, pairs
