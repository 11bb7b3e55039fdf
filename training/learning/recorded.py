"""Held-back decisions of recorded episodes: states that several of them left by different replies.

Episodes of one task that made the same replies and observed the same are in one state. Each reply
of another effect is a candidate there; its outcomes are those of the episodes that gave it, and its
prior the share of them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from qnet.action_key import message_key
from qnet.decision.prior import prior_of
from qnet.types import History, Message
from training.learning.episodes import Episode
from training.licence.evidence import HeldBackDecision

QValues = Callable[[History, tuple[Message, ...]], Sequence[float]]


@dataclass(slots=True)
class _Visited:
    """A state, and the outcomes of the episodes that left it by each effect."""

    task: str
    history: History
    replies: dict[str, Message] = field(default_factory=dict)
    outcomes: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


def recorded_decisions(episodes: Sequence[Episode], q_values: QValues) -> list[HeldBackDecision]:
    """The states of these episodes with at least two candidates, valued by a Q model.

    Args:
        episodes: of tasks from which the Q model has not learned.
        q_values: of candidates after a history.
    """
    return [_decision(visited, q_values) for visited in _branching(episodes)]


def _branching(episodes: Sequence[Episode]) -> Iterator[_Visited]:
    found: dict[tuple[object, ...], _Visited] = {}
    for episode in episodes:
        for history, action, effect in zip(
            episode.states, episode.actions, episode.effects, strict=True
        ):
            key = (episode.task, *(_read(message) for message in history))
            visited = found.setdefault(key, _Visited(episode.task, history))
            visited.replies.setdefault(effect, action)
            visited.outcomes[effect].append(episode.reward)
    return (visited for visited in found.values() if len(visited.replies) > 1)


def _read(message: Message) -> object:
    """The part of a message by which states are told apart: of a reply, what acts in it."""
    return message_key(message) if message.role == "assistant" else message


def _decision(visited: _Visited, q_values: QValues) -> HeldBackDecision:
    replies = tuple(visited.replies.values())
    outcomes = [tuple(visited.outcomes[effect]) for effect in visited.replies]
    prior = prior_of(replies, counts=[len(own) for own in outcomes])
    return HeldBackDecision(
        visited.task, tuple(q_values(visited.history, replies)), prior.log_shares, outcomes
    )
