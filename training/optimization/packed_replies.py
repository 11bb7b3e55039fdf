"""Packed replies: the preference pairs of a task, or the candidates of an episode, as one row.

States of an episode begin alike, and so do the two sides of a pair. Every distinct token goes
through the model once (see `packed_trees`), and log pi of a reply is the same as from its path
alone.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from qguide.qnet.engine.token_trie import TokenTrie
from qguide.qnet.records import TreeRow, messages_of
from qguide.qnet.rendering.renderer import Renderer
from qguide.qnet.types import History, Message
from qguide.training.algorithms.choice_quality import PlacedChoice
from qguide.training.data.decision_groups import GroupLabels, choices_of
from qguide.training.data.preferences import Level, PreferenceRow


@dataclass(frozen=True, slots=True)
class PackedPair:
    """Indices of the two replies of a pair."""

    chosen: int
    rejected: int
    level: Level


@dataclass(frozen=True, slots=True)
class ReplyPath:
    """A state and a reply to it as tokens.

    Attributes:
        scored: positions of the reply's own tokens, ends of turns included; observations and
            mistakes within it are left out.
    """

    token_ids: list[int]
    scored: list[int]


@dataclass(slots=True)
class PackedReplies(TokenTrie):
    """States and replies that begin alike.

    Attributes:
        replies: (R,) indices of the tokens of each distinct reply.
        groups: the candidates of each state, in places of `replies`.
    """

    replies: list[tuple[int, ...]] = field(default_factory=list)
    pairs: list[PackedPair] = field(default_factory=list)
    groups: list[PlacedChoice] = field(default_factory=list)
    _reply_index: dict[tuple[int, ...], int] = field(default_factory=dict)

    def add_reply(self, path: ReplyPath) -> int:
        """Add a reply to its state; returns its index in `replies`."""
        indices = self.add(path.token_ids)
        reply = tuple(indices[position] for position in path.scored)
        # In a trie equal indices are equal tokens after equal tokens: the same reply in the same state.
        if reply not in self._reply_index:
            self._reply_index[reply] = len(self.replies)
            self.replies.append(reply)
        return self._reply_index[reply]


def reply_path(
    renderer: Renderer, history: History, reply: Sequence[Message], *, mistakes: Collection[int] = ()
) -> ReplyPath:
    """Tokens of a reply after its state, as a scorer reads them.

    Args:
        reply: an assistant's message, then answers and messages in turn.
    """
    rendered = renderer.encode_episode((*history, *reply))
    # The history's own replies have spans, too; those of `reply` come last.
    own = rendered.action_spans[-sum(message.role == "assistant" for message in reply) :]
    scored = [
        position for number, (start, end) in enumerate(own) if number not in mistakes for position in range(start, end)
    ]
    return ReplyPath(rendered.token_ids[: own[-1][1]], scored)


def add_pair(
    packed: list[PackedReplies], renderer: Renderer, row: PreferenceRow, *, max_length: int, max_tokens: int
) -> None:
    """Add a preference pair to the packed rows of its task.

    Args:
        packed: of this task so far; it grows where the last one is full.
        max_length: longest path; a pair with a longer one is left out.
        max_tokens: most distinct tokens of a packed row with several pairs.
    """
    history = row.history
    paths = [
        reply_path(renderer, history, messages_of(row.chosen), mistakes=row.mistakes),
        reply_path(renderer, history, messages_of(row.rejected)),
    ]
    if max(len(path.token_ids) for path in paths) > max_length:
        return
    tree = _with_room(packed, paths, max_tokens=max_tokens)
    chosen, rejected = (tree.add_reply(path) for path in paths)
    tree.pairs.append(PackedPair(chosen, rejected, row.level))


def pack_candidates(
    renderer: Renderer, row: TreeRow, labels: GroupLabels, *, max_length: int, max_tokens: int, tied: bool = True
) -> list[PackedReplies]:
    """Pack the decisions of an episode.

    Args:
        max_length: longest path; decisions behind it are left out.
        max_tokens: an episode with more tokens becomes several packed rows; the candidates of one
            state stay together.
        tied: pack states, too, whose candidates all have the same value.
    """
    packed: list[PackedReplies] = []
    for decision in choices_of(row):
        candidates = decision.candidates
        paths = [reply_path(renderer, decision.history, (candidate.message,)) for candidate in candidates]
        if max(len(path.token_ids) for path in paths) > max_length:
            break
        labelled = decision.labels(labels)
        if not tied and len({label.value for label in labelled}) == 1:
            continue
        tree = _with_room(packed, paths, max_tokens=max_tokens)
        replies = tuple(tree.add_reply(path) for path in paths)
        tree.groups.append(PlacedChoice(replies, decision.choice(labelled, task=row.task_id)))
    for tree in packed:
        tree.finish()
    return packed


def _with_room(packed: list[PackedReplies], paths: Sequence[ReplyPath], *, max_tokens: int) -> PackedReplies:
    if packed:
        # At most: what the paths share with each other alone counts in each of them.
        added = sum(packed[-1].new_tokens(path.token_ids) for path in paths)
        if len(packed[-1]) + added <= max_tokens:
            return packed[-1]
    packed.append(PackedReplies())
    return packed[-1]
