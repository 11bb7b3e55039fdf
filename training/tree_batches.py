"""Labelled trees as batches: every distinct token of a tree once.

The paths of a tree share their beginnings, and siblings differ in one action. So a tree goes
through the trunk as one packed row in which a token sees the tokens before it on its own path and
no others: the same Q as from each path alone, at the price of the distinct tokens.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from qnet.rendering import Renderer
from training.algorithms.regression import LossOn, regression_columns
from training.records import LabelRow, messages_of


@dataclass(frozen=True, slots=True)
class Place:
    """Where one action's Q is read: the position of its last token in the packed tree."""

    position: int
    q_value: float


Pair = tuple[Place, Place]
"""(better, worse) actions of the same state."""


@dataclass(slots=True)
class PackedTree:
    """The distinct tokens of some paths of one tree, each after the token that it follows.

    Attributes:
        token_ids: (T,).
        depths: (T,) how many tokens stand before each on its path: its position id.
        before: (T,) index of the token that each follows; -1 for the first.
        weight: (T,) of the squared error at each token.
        weighted: (T,) target times weight.
        pairs: the siblings with different labels.
    """

    token_ids: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)
    weighted: list[float] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    _index: dict[tuple[int, int], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def target(self) -> list[float]:
        """(T,) what Q regresses to; 0 where nothing is asked."""
        return [t / w if w else 0.0 for t, w in zip(self.weighted, self.weight, strict=True)]

    def new_tokens(self, token_ids: Sequence[int]) -> int:
        """How many of a path's tokens are not here yet."""
        known = sum(1 for _ in self._walk(token_ids))
        return len(token_ids) - known

    def add(
        self, token_ids: Sequence[int], weight: Sequence[float], target: Sequence[float]
    ) -> list[int]:
        """Add a path; returns the index of each of its tokens."""
        indices = list(self._walk(token_ids))
        for depth in range(len(indices), len(token_ids)):
            indices.append(self._append(indices[-1] if indices else -1, token_ids[depth], depth))
        for index, w, t in zip(indices, weight, target, strict=True):
            self.weight[index] += w
            self.weighted[index] += w * t
        return indices

    def visible(self) -> Tensor:
        """(1, 1, T, T): whether a token (row) sees another (column)."""
        seen_TT = np.zeros((len(self), len(self)), dtype=bool)
        for index, before in enumerate(self.before):
            if before >= 0:
                seen_TT[index] = seen_TT[before]
            seen_TT[index, index] = True
        return torch.from_numpy(seen_TT)[None, None]

    def _walk(self, token_ids: Sequence[int]) -> Iterator[int]:
        """The indices of a path's tokens as far as they are here."""
        at = -1
        for token in token_ids:
            found = self._index.get((at, token))
            if found is None:
                return
            at = found
            yield at

    def _append(self, before: int, token: int, depth: int) -> int:
        index = self._index[before, token] = len(self.token_ids)
        self.token_ids.append(token)
        self.depths.append(depth)
        self.before.append(before)
        self.weight.append(0.0)
        self.weighted.append(0.0)
        return index


def sibling_pairs(places: Iterable[tuple[int, Place]], *, min_gap: float) -> list[Pair]:
    """All (better, worse) pairs among actions of the same parent.

    Args:
        places: (parent id, place) of every labelled action of a tree.
        min_gap: smallest difference of labels that makes a pair.
    """
    families: dict[int, list[Place]] = defaultdict(list)
    for parent, place in places:
        families[parent].append(place)
    return [
        (better, worse)
        for siblings in families.values()
        for better in siblings
        for worse in siblings
        if better.q_value - worse.q_value >= min_gap
    ]


def pack_tree(
    renderer: Renderer,
    rows: Sequence[LabelRow],
    *,
    loss_on: LossOn,
    min_gap: float,
    max_length: int,
    max_tokens: int,
) -> list[PackedTree]:
    """The paths of one tree as packed rows.

    Args:
        rows: the paths; those of more than `max_length` tokens are left out.
        max_tokens: a tree with more distinct tokens becomes several packed rows; siblings in
            different rows are no pair.
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
        indices = packed[-1].add(token_ids, columns["weight"], columns["target"])
        ends = [end for _, end in rendered.action_spans]
        for parent, end, q in zip(row.parent_ids, ends, row.q_values, strict=True):
            if q is not None:
                places[-1].append((parent, Place(indices[end - 1], q)))
    for tree, mine in zip(packed, places, strict=True):
        tree.pairs = sibling_pairs(mine, min_gap=min_gap)
    return packed


def without_tails(rows: Sequence[LabelRow]) -> list[LabelRow]:
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
