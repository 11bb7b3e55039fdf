"""Labelled trees as batches: the tokens of their paths, the targets, the sibling pairs."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qnet.rendering import Renderer
from training.algorithms.regression import LossOn, regression_columns
from training.batching import Sequence1D
from training.records import LabelRow, messages_of


@dataclass(frozen=True, slots=True)
class Place:
    """Where one action's Q is read: a row of a tree's batch and the position in it."""

    row: int
    position: int
    q_value: float


Pair = tuple[Place, Place]
"""(better, worse) actions of the same state."""


@dataclass(frozen=True, slots=True)
class TreeBatch:
    """The paths of one tree, and the sibling pairs (better, worse) among their actions."""

    rows: list[Sequence1D]
    pairs: list[Pair]

    @property
    def padded_tokens(self) -> int:
        """Tokens that go through the trunk."""
        return len(self.rows) * max(len(row.token_ids) for row in self.rows)


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


def build_tree_batch(
    renderer: Renderer,
    rows: Sequence[LabelRow],
    *,
    loss_on: LossOn,
    min_gap: float,
    max_length: int,
) -> TreeBatch:
    """Tokens, targets and sibling pairs of one tree; paths over `max_length` are left out."""
    sequences: list[Sequence1D] = []
    places: list[tuple[int, Place]] = []
    for row in rows:
        rendered = renderer.encode_episode(messages_of(row.messages))
        if len(rendered.token_ids) > max_length:
            continue
        columns = regression_columns(
            len(rendered.token_ids), rendered.action_spans, row.q_values, loss_on=loss_on
        )
        ends = [end for _, end in rendered.action_spans]
        for parent, end, q in zip(row.parent_ids, ends, row.q_values, strict=True):
            if q is not None:
                places.append((parent, Place(len(sequences), end - 1, q)))
        sequences.append(Sequence1D(rendered.token_ids, columns))
    return TreeBatch(sequences, sibling_pairs(places, min_gap=min_gap))
