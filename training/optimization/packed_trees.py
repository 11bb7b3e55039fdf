"""Packed trees: every distinct token of a labelled tree goes through the trunk once.

The paths of a tree share their beginnings, and siblings differ in one action. A tree becomes one
packed row, in which a token sees the tokens before it on its own path and no others. Q is the same
as from each path alone, and the cost is that of the distinct tokens.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qnet.engine.token_trie import TokenTree
from qnet.models.match_features import MATCH_FEATURES, match_features, turns_of
from qnet.rendering.renderer import RenderedEpisode, Renderer
from training.algorithms.regression import LossOn, regression_columns
from training.data.records import LabelRow, messages_of


@dataclass(frozen=True, slots=True)
class Place:
    """Position of an action's last token in a packed tree, where its Q is read.

    Attributes:
        q_value: the action's label.
        steps: to the goal after it; None if only the label is known.
        valid: False where the action meant nothing to the environment.
    """

    position: int
    q_value: float
    steps: float | None = None
    valid: bool = True


Pair = tuple[Place, Place]
"""(better, worse) actions of the same state."""


@dataclass(slots=True)
class PackedTree(TokenTree):
    """Paths of one tree, with weights and targets of Q at their tokens.

    Attributes:
        weight: (T,) of the squared error at each token.
        weighted: (T,) target times weight.
        pairs: the siblings with different labels.
        groups: the candidates that a policy drew, state by state.
        features: by position of an action's last token, inputs of the head beside its state.
        observed: (position, token) of each token that the world, not the agent, wrote next.
        outcomes: (position, token) of each action's last token and the first word of its answer.
    """

    weight: list[float] = field(default_factory=list)
    weighted: list[float] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    groups: list[tuple[Place, ...]] = field(default_factory=list)
    features: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    observed: list[tuple[int, int]] = field(default_factory=list)
    outcomes: list[tuple[int, int]] = field(default_factory=list)

    @property
    def target(self) -> list[float]:
        """(T,) target of the regression; 0 where the weight is 0."""
        return [t / w if w else 0.0 for t, w in zip(self.weighted, self.weight, strict=True)]

    @property
    def features_TF(self) -> Tensor | None:
        """Features of each action at its last token, 0 elsewhere; None if the head reads none."""
        if not self.features:
            return None
        features_TF = torch.zeros((len(self), len(MATCH_FEATURES)))
        rows = torch.from_numpy(np.stack(list(self.features.values())))
        features_TF[list(self.features)] = rows
        return features_TF

    def add_labelled(
        self, token_ids: Sequence[int], weight: Sequence[float], target: Sequence[float]
    ) -> list[int]:
        """Add a path with its weights and targets; returns each token's index."""
        indices = self.add(token_ids)
        for index, w, t in zip(indices, weight, target, strict=True):
            self.weight[index] += w
            self.weighted[index] += w * t
        return indices

    def label(self, place: Place) -> None:
        """Add an action's label at the position where its Q is read."""
        self.weight[place.position] += 1.0
        self.weighted[place.position] += place.q_value

    def _append(self, before: int, token: int, depth: int) -> int:
        self.weight.append(0.0)
        self.weighted.append(0.0)
        return TokenTree._append(self, before, token, depth)  # super() knows no slots


def sibling_pairs(places: Iterable[tuple[int, Place]], *, min_label_margin: float) -> list[Pair]:
    """All (better, worse) pairs among actions of the same parent.

    Args:
        places: (parent id, place) of every labelled action of a tree.
        min_label_margin: smallest difference of labels that makes a pair.
    """
    families: dict[int, list[Place]] = defaultdict(list)
    for parent, place in places:
        families[parent].append(place)
    return [
        (better, worse)
        for siblings in families.values()
        for better in siblings
        for worse in siblings
        if better.q_value - worse.q_value >= min_label_margin
    ]


def pack_tree(
    renderer: Renderer,
    rows: Sequence[LabelRow],
    *,
    loss_on: LossOn,
    min_label_margin: float,
    max_length: int,
    max_tokens: int,
    with_features: bool = False,
) -> list[PackedTree]:
    """Pack the paths of one tree.

    Args:
        rows: the paths; those of more than `max_length` tokens are left out.
        max_tokens: a tree with more distinct tokens becomes several packed rows; siblings in
            different rows are no pair.
        with_features: add the match features of every action.
    """
    packed: list[PackedTree] = []
    places: list[list[tuple[int, Place]]] = []
    for row in rows:
        rendered = renderer.encode_episode(messages_of(row.messages))
        token_ids = rendered.token_ids
        if len(token_ids) > max_length:
            continue
        if not packed or len(packed[-1]) + packed[-1].new_tokens(token_ids) > max_tokens:
            packed.append(PackedTree())
            places.append([])
        columns = regression_columns(
            len(token_ids), rendered.action_spans, row.q_values, loss_on=loss_on
        )
        indices = packed[-1].add_labelled(token_ids, columns["weight"], columns["target"])
        if with_features:
            _add_features(packed[-1], rendered, indices)
        ends = [end for _, end in rendered.action_spans]
        for parent, end, q in zip(row.parent_ids, ends, row.q_values, strict=True):
            if q is not None:
                places[-1].append((parent, Place(indices[end - 1], q)))
    for tree, mine in zip(packed, places, strict=True):
        tree.pairs = sibling_pairs(mine, min_label_margin=min_label_margin)
    return packed


def _add_features(tree: PackedTree, rendered: RenderedEpisode, indices: Sequence[int]) -> None:
    """Add match features of a path's actions, where the tree does not have them yet."""
    for number, (start, end) in enumerate(rendered.action_spans):
        position = indices[end - 1]
        if position not in tree.features:
            token_ids = rendered.token_ids
            turns = turns_of(token_ids[:start], rendered.action_spans[:number])
            [tree.features[position]] = match_features(turns, [token_ids[start:end]])


def without_unbranched_suffixes(rows: Sequence[LabelRow]) -> list[LabelRow]:
    """Each path up to its last action that has a sibling; a path without one is left out."""
    children: dict[int, set[int]] = defaultdict(set)
    for row in rows:
        for parent, node in zip(row.parent_ids, row.node_ids, strict=True):
            children[parent].add(node)
    cut = []
    for row in rows:
        rivalled = [i for i, parent in enumerate(row.parent_ids, 1) if len(children[parent]) > 1]
        if rivalled:
            cut.append(_cut(row, rivalled[-1]))
    return cut


def _cut(row: LabelRow, actions: int) -> LabelRow:
    ends = [i for i, message in enumerate(row.messages, 1) if message.role == "assistant"]
    return row.model_copy(
        update={
            "messages": row.messages[: ends[actions - 1]],
            "q_values": row.q_values[:actions],
            "node_ids": row.node_ids[:actions],
            "parent_ids": row.parent_ids[:actions],
        }
    )
