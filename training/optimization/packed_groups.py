"""Packed decision groups: an episode as a tree whose siblings are the candidates.

The episode is the main path of the tree, and the candidates of each state branch off it, so that
one packed forward pass scores all of them (see `packed_trees`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from qguide.qnet.models.match_features import match_features, observed_features, turns_of
from qguide.qnet.records import TreeRow
from qguide.qnet.rendering.renderer import RenderedEpisode, Renderer
from qguide.training.algorithms.choice_quality import PlacedChoice
from qguide.training.data.decision_groups import GroupDecision, GroupLabels, choices_of, decisions_of
from qguide.training.optimization.options import ReadAt
from qguide.training.optimization.packed_trees import Framing, PackedTree, QPlace


def pack_groups(
    renderer: Renderer,
    row: TreeRow,
    labels: GroupLabels,
    *,
    min_label_margin: float,
    max_length: int,
    max_tokens: int,
    with_features: bool = False,
    read_at: ReadAt = "action",
    framing: Framing | None = None,
) -> list[PackedTree]:
    """Pack the decisions of an episode.

    Args:
        max_length: longest path in tokens; the episode is cut off at a decision that exceeds it.
        max_tokens: an episode with more tokens becomes several packed rows, each with the whole
            path from the start; the candidates of one state stay together.
        read_at: where Q is read. After observations, states with a single candidate are labelled
            too, because the value is that of the state that was reached, not of a choice.
        framing: add the observation after each candidate, for `observed` and `outcomes`.
    """
    packed: list[PackedTree] = []
    for decision in decisions_of(row) if read_at == "observation" else choices_of(row):
        asked = _render(renderer, decision, answers=read_at == "observation" or framing is not None)
        if asked.longest > max_length:
            break  # not continue: later histories hold this one
        tree = packed[-1] if packed else PackedTree()
        if not packed or len(tree) + asked.new_tokens(tree) > max_tokens:
            packed.append(tree := PackedTree())
        read = _add(tree, asked, read_at, framing, with_features=with_features)
        found = decision.labels(labels)
        places = [QPlace(at, label.value) for at, label in zip(read, found, strict=True)]
        _label(tree, places, min_label_margin=min_label_margin)
        if len(places) > 1:
            choice = decision.choice(found, task=row.task_id)
            tree.groups.append(PlacedChoice(tuple(read), choice))
    for tree in packed:
        tree.finish()
    return packed


def _label(tree: PackedTree, places: Sequence[QPlace], *, min_label_margin: float) -> None:
    for place in places:
        tree.label(place)
    tree.pairs += [
        (a, b) if a.q_value > b.q_value else (b, a)
        for a, b in combinations(places, 2)
        if abs(a.q_value - b.q_value) >= min_label_margin
    ]


@dataclass(frozen=True, slots=True)
class _Rendered:
    """A decision as tokens.

    Attributes:
        answers: the environment's answer to each candidate, framed as a turn, with the prompt after
            it; empty lists if answers are not needed.
    """

    state: RenderedEpisode
    candidates: list[list[int]]
    answers: list[list[int]]

    @property
    def longest(self) -> int:
        behind = zip(self.candidates, self.answers, strict=True)
        return len(self.state.token_ids) + max(len(c) + len(a) for c, a in behind)

    def new_tokens(self, tree: PackedTree) -> int:
        """Upper bound of the number of tokens that the decision adds to a tree."""
        behind = sum(map(len, self.candidates)) + sum(map(len, self.answers))
        return tree.new_tokens(self.state.token_ids) + behind


def _render(renderer: Renderer, decision: GroupDecision, *, answers: bool) -> _Rendered:
    history = decision.history
    said = [candidate.message for candidate in decision.candidates]
    observed = [candidate.answer for candidate in decision.candidates]
    return _Rendered(
        renderer.encode_state(history),
        [renderer.encode_candidate(message) for message in said],
        [
            renderer.encode_observation(history, message, answer) if answers else []
            for message, answer in zip(said, observed, strict=True)
        ],
    )


def _add(
    tree: PackedTree, asked: _Rendered, read_at: ReadAt, framing: Framing | None, *, with_features: bool
) -> list[int]:
    """Add a decision's candidates, and return the positions where the Q of each is read."""
    history, spans = asked.state.token_ids, asked.state.action_spans
    # The tree has this state's history up to the step before: only what that step brought is new.
    stem = tree.add(history)[-1]
    ends = [tree.extend(stem, candidate)[-1] for candidate in asked.candidates]
    answered = [
        tree.add_answer(end, answer, framing) if framing else tree.extend(end, answer)
        for end, answer in zip(ends, asked.answers, strict=True)
    ]
    if read_at == "action":
        if with_features:
            rows = match_features(turns_of(history, spans), asked.candidates)
            tree.features.update(zip(ends, rows, strict=True))
        return ends
    read = [answer[-1] for answer in answered]
    if with_features:
        for place, candidate, answer in zip(read, asked.candidates, asked.answers, strict=True):
            [tree.features[place]] = observed_features(history, spans, candidate, answer)
    return read
