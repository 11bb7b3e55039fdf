"""Packed trees: every distinct token of a labelled tree goes through the trunk once.

The paths of a tree share their beginnings, and siblings differ in one action. A tree becomes one
packed row in which each token attends only to the tokens before it on its own path. Q is the same
as for each path alone, and the cost is that of the distinct tokens.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qguide.qnet.engine.token_trie import TokenTrie
from qguide.qnet.errors import RecordError
from qguide.qnet.models.match_features import MATCH_FEATURES, match_features, observed_features, turns_of
from qguide.qnet.rendering.renderer import RenderedEpisode, Renderer
from qguide.qnet.types import Message
from qguide.training.algorithms.backups import LabelledPath, labelled_paths, labels_of_actions
from qguide.training.algorithms.choice_quality import PlacedChoice
from qguide.training.data.records import LabelledTree
from qguide.training.data.siblings import sibling_choices
from qguide.training.optimization.options import LossOn, ReadAt


def regression_columns(
    length: int, action_spans: Sequence[tuple[int, int]], q_values: Sequence[float | None], *, loss_on: LossOn
) -> dict[str, list[float]]:
    """Per-token weights and targets with which one pass over an episode gives the papers' loss.

    Equation 11 puts the label q_t of (s_t, a_t) on each of its n_t positions with weight 1/n_t.
    An episode holds all its (s_t, a_t) as prefixes, and sum_t (1/n_t) (q - q_t)^2 over the labels
    that share a position is w (q - m)^2 + constant, with w = sum_t 1/n_t and m = sum_t q_t/n_t / w.
    So the gradient is the same and each token goes through the trunk once.

    Args:
        action_spans: [start, end) of each action.
        q_values: one label per action; None for an action whose label is in another path.
        loss_on: positions with the label: `all` up to the action's end, those of the `action`, or
            only its `last` one.

    Returns:
        Columns `weight` and `target`; the weights of one label sum to 1.
    """
    weight = [0.0] * length
    weighted = [0.0] * length
    for (start, end), q in zip(action_spans, q_values, strict=True):
        if q is None:
            continue
        first = {"all": 0, "action": start, "last": end - 1}[loss_on]
        share = 1.0 / (end - first)
        for position in range(first, end):
            weight[position] += share
            weighted[position] += share * q
    target = [m / w if w else 0.0 for m, w in zip(weighted, weight, strict=True)]
    return {"weight": weight, "target": target}


@dataclass(frozen=True, slots=True)
class QPlace:
    """Position in a packed tree where an action's Q is read.

    Attributes:
        position: that of the action's last token, or of the last token before the next reply.
    """

    position: int
    q_value: float


Pair = tuple[QPlace, QPlace]
"""(better, worse) actions of the same state."""


@dataclass(frozen=True, slots=True)
class Framing:
    """Number of tokens that a chat template puts before and after an observation."""

    front: int
    back: int

    @classmethod
    def of(cls, renderer: Renderer) -> "Framing":
        """Measure the framing as the tokens that two quite different observations share."""
        history, action = (Message("user", "task"),), Message("assistant", "act")
        one, other = (
            renderer.encode_observation(history, action, (Message("user", said),))
            for said in ("You see it", "Nothing happens.")
        )
        return cls(_shared(one, other), _shared(one[::-1], other[::-1]))


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@dataclass(slots=True)
class PackedTree(TokenTrie):
    """Paths of one tree, with weights and targets of Q at their tokens.

    Attributes:
        weight: (T,) weight of the squared error at each token.
        weighted: (T,) target times weight.
        pairs: pairs of siblings with different labels.
        successions: pairs of an action and the one before it on its path, both labelled.
        groups: the candidates of a state, state by state: those that a policy drew, or siblings.
        features: the head's inputs besides the hidden state, by position where Q is read.
        observed: positions of the tokens that the environment wrote after actions.
        outcomes: the first token of the answer to each action, by position of the action's last
            token.
    """

    weight: MutableSequence[float] = field(default_factory=list)
    weighted: MutableSequence[float] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    successions: list[tuple[QPlace, QPlace]] = field(default_factory=list)
    groups: list[PlacedChoice] = field(default_factory=list)
    features: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    observed: set[int] = field(default_factory=set)
    outcomes: dict[int, int] = field(default_factory=dict)

    @property
    def target(self) -> list[float]:
        """(T,) target of the regression; 0 where the weight is 0."""
        return [t / w if w else 0.0 for t, w in zip(self.weighted, self.weight, strict=True)]

    @property
    def features_TF(self) -> Tensor | None:
        """Features of each action where its Q is read, 0 elsewhere; None if there are none."""
        if not self.features:
            return None
        features_TF = torch.zeros((len(self), len(MATCH_FEATURES)))
        rows = torch.from_numpy(np.stack(list(self.features.values())))
        features_TF[list(self.features)] = rows
        return features_TF

    def add_labelled(self, token_ids: Sequence[int], weight: Sequence[float], target: Sequence[float]) -> list[int]:
        """Add a path with its weights and targets, and return each token's index."""
        indices = self.add(token_ids)
        # Paths share tokens, whose errors add up: w (q - t)^2 + w' (q - t')^2 is one square around the
        # weighted mean of t and t', and a constant without a gradient.
        for index, w, t in zip(indices, weight, target, strict=True):
            self.weight[index] += w
            self.weighted[index] += w * t
        return indices

    def label(self, place: QPlace) -> None:
        """Add an action's label at the position where its Q is read."""
        self.weight[place.position] += 1.0
        self.weighted[place.position] += place.q_value

    def add_answer(self, end: int, answer: Sequence[int], framing: "Framing") -> list[int]:
        """Add the environment's answer to an action, and return the index of each token.

        Args:
            end: index of the action's last token.
            answer: tokens of the answer, the chat template's included.
            framing: number of the chat template's tokens at either end.
        """
        indices = self.extend(end, answer)
        said = range(framing.front, len(answer) - framing.back)
        self.observed.update(indices[i] for i in said)
        if said:
            self.outcomes[end] = answer[said.start]
        return indices

    def finish(self) -> None:
        """Take a quarter of the memory, now that no path is added any more."""
        TokenTrie.finish(self)
        self.weight, self.weighted = array("d", self.weight), array("d", self.weighted)

    def _append(self, before: int, token: int, depth: int) -> int:
        self.weight.append(0.0)
        self.weighted.append(0.0)
        # Not super(): with slots, dataclass makes a new class that a bare super() does not find.
        return TokenTrie._append(self, before, token, depth)


def sibling_pairs(places: Iterable[tuple[int, QPlace]], *, min_label_margin: float) -> list[Pair]:
    """All (better, worse) pairs among actions of the same parent.

    Args:
        places: (parent id, place) of every labelled action of a tree.
        min_label_margin: smallest difference between labels that makes a pair.
    """
    families: dict[int, list[QPlace]] = defaultdict(list)
    for parent, place in places:
        families[parent].append(place)
    return [
        (better, worse)
        for siblings in families.values()
        for better in siblings
        for worse in siblings
        # The same action may have led to different observations; it is no alternative to itself.
        if better.position != worse.position and better.q_value - worse.q_value >= min_label_margin
    ]


def pack_tree(
    renderer: Renderer,
    labelled: LabelledTree,
    *,
    loss_on: LossOn,
    min_label_margin: float,
    max_length: int,
    max_tokens: int,
    unbranched_suffixes: bool = True,
    with_features: bool = False,
    read_at: ReadAt = "action",
    framing: Framing | None = None,
) -> list[PackedTree]:
    """Pack the paths of one tree.

    Args:
        max_length: longest path in tokens; longer ones are left out.
        unbranched_suffixes: keep the actions after a path's last branching.
        max_tokens: size of a packed row; siblings in different rows do not form pairs.
        with_features: add the match features of every action.
        read_at: where Q is read; after observations, only that position has the label.
        framing: add `observed` and `outcomes`, with the observation after each leaf.
    """
    packed: list[PackedTree] = []
    places: list[list[_Labelled]] = []
    labels = labels_of_actions(labelled.tree, labelled.labels) if read_at == "action" else labelled.labels
    paths = list(labelled_paths(labelled.tree, labels))
    whole = read_at == "observation" or framing is not None
    for path in paths if unbranched_suffixes else without_unbranched_suffixes(paths):
        rendered = _render(renderer, labelled, path, whole=whole)
        if len(rendered.token_ids) > max_length:
            continue
        # The last row alone: paths come in the order of the tree, and neighbours share the most.
        if not packed or len(packed[-1]) + packed[-1].new_tokens(rendered.token_ids) > max_tokens:
            packed.append(PackedTree())
            places.append([])
        indices = _add_path(packed[-1], path, rendered, read_at, loss_on, framing)
        if with_features:
            _add_features(packed[-1], rendered, indices, read_at)
        places[-1] += _labelled_places(path, _read_places(rendered, read_at), indices)
    for tree, mine in zip(packed, places, strict=True):
        siblings = [(one.parent_id, one.place) for one in mine]
        tree.pairs = sibling_pairs(siblings, min_label_margin=min_label_margin)
        place_of = {one.node_id: one.place for one in mine}
        if labelled.target != "judge":  # a judge's scores are no outcomes
            tree.groups = sibling_choices(labelled, [(one.node_id, one.place.position) for one in mine])
        # An action whose predecessor's label is in another row has none: Q of both must be in one pass.
        tree.successions = [(one.place, place_of[one.parent_id]) for one in mine if one.parent_id in place_of]
        tree.finish()
    return packed


def _add_path(
    tree: PackedTree,
    path: LabelledPath,
    rendered: RenderedEpisode,
    read_at: ReadAt,
    loss_on: LossOn,
    framing: Framing | None,
) -> list[int]:
    """Add a path, its labels and its answers, and return the index of each token."""
    token_ids, spans = rendered.token_ids, rendered.action_spans
    if read_at == "action":
        columns = regression_columns(len(token_ids), spans, path.q_values, loss_on=loss_on)
        indices = tree.add_labelled(token_ids, columns["weight"], columns["target"])
    else:
        indices = tree.add(token_ids)
        for labelled in _labelled_places(path, _read_places(rendered, read_at), indices):
            tree.label(labelled.place)
    if framing is not None:
        _add_answers(tree, rendered, indices, framing)
    return indices


class _Labelled(NamedTuple):
    """An action whose label is in a path, and where its Q is read."""

    node_id: int
    parent_id: int
    place: QPlace


def _labelled_places(path: LabelledPath, read: Sequence[int], indices: Sequence[int]) -> list[_Labelled]:
    return [
        _Labelled(node.id, node.parent, QPlace(indices[i], q))
        for node, i, q in zip(path.nodes, read, path.q_values, strict=True)
        if q is not None
    ]


def _render(renderer: Renderer, labelled: LabelledTree, path: LabelledPath, *, whole: bool) -> RenderedEpisode:
    """A path up to its leaf's action, or with the observation after it and the next prompt."""
    tree, leaf = labelled.tree, path.nodes[-1]
    if not whole:
        return renderer.encode_episode((*tree.history(leaf.parent), leaf.step.message))
    judged = labelled.target == "judge"  # a judge values also what was not seen through
    if not leaf.step.tried or (judged and leaf.step.unobserved):
        raise RecordError(
            f"task {labelled.task_id}, node {leaf.id}: the observation after this candidate, which "
            "this training reads, is unknown; train with read_at = 'action', or on labels of "
            "another target"
        )
    return renderer.encode_state(tree.history(leaf.id))


def _read_places(rendered: RenderedEpisode, read_at: ReadAt) -> list[int]:
    """Index of the token of a path at which each action's Q is read."""
    spans = rendered.action_spans
    if read_at == "action":
        return [end - 1 for _, end in spans]
    # The token before a reply ends its prompt; after the last action the path itself ends so.
    return [*(start - 1 for start, _ in spans[1:]), len(rendered.token_ids) - 1]


def _add_answers(tree: PackedTree, rendered: RenderedEpisode, indices: Sequence[int], framing: Framing) -> None:
    last = _read_places(rendered, "observation")
    for (_, end), place in zip(rendered.action_spans, last, strict=True):
        tree.add_answer(indices[end - 1], rendered.token_ids[end : place + 1], framing)


def _add_features(tree: PackedTree, rendered: RenderedEpisode, indices: Sequence[int], read_at: ReadAt) -> None:
    token_ids, spans = rendered.token_ids, rendered.action_spans
    read = _read_places(rendered, read_at)
    for number, ((start, end), place) in enumerate(zip(spans, read, strict=True)):
        if indices[place] in tree.features:
            continue
        before, action = token_ids[:start], token_ids[start:end]
        if place >= end:
            observed = token_ids[end : place + 1]
            [features_F] = observed_features(before, spans[:number], action, observed)
        else:
            [features_F] = match_features(turns_of(before, spans[:number]), [action])
        tree.features[indices[place]] = features_F


def without_unbranched_suffixes(paths: Sequence[LabelledPath]) -> list[LabelledPath]:
    """Each path up to its last action that has a sibling; a path without one is left out."""
    children: dict[int, set[int]] = defaultdict(set)
    for path in paths:
        for node in path.nodes:
            children[node.parent].add(node.id)
    cut = []
    for path in paths:
        rivalled = [i for i, node in enumerate(path.nodes, 1) if len(children[node.parent]) > 1]
        if rivalled:
            cut.append(LabelledPath(path.nodes[: rivalled[-1]], path.q_values[: rivalled[-1]]))
    return cut
