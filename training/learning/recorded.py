"""Held-back decisions of recorded episodes: states that several of them left by different replies.

Episodes of one task that made the same replies and observed the same are in one state. Each reply
of another effect is a candidate there; its outcomes are those of the episodes that gave it, and its
prior the share of the agent's draws, or of those episodes where the draws were not recorded.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from qguide.qnet.chat_messages import message_key
from qguide.qnet.decision.selection import prior_of
from qguide.qnet.types import History, Message
from qguide.training.learning.episodes import LearnedEpisode
from qguide.training.licence.evidence import HeldBackDecision
from qguide.training.trajectory import Drawn

QValues = Callable[[History, tuple[Message, ...]], Sequence[float]]


@dataclass(slots=True)
class _Visited:
    """A state, and the outcomes of the episodes that left it by each effect.

    Attributes:
        votes: draws of each effect, those that were not taken included.
        greedy: effect of the agent's greedy reply; "" if unknown.
    """

    task: str
    history: History
    replies: dict[str, Message] = field(default_factory=dict)
    outcomes: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    votes: Counter[str] = field(default_factory=Counter)
    greedy: str = ""

    def add(self, action: Message, reward: float, drawn: Sequence[Drawn]) -> None:
        """Note one episode that was here."""
        effect = message_key(action)
        self.replies.setdefault(effect, action)
        self.outcomes[effect].append(reward)
        for one in drawn or [Drawn(action)]:
            self.votes[message_key(one.message)] += one.count
            if one.greedy:
                self.greedy = message_key(one.message)


def recorded_decisions(episodes: Sequence[LearnedEpisode], q_values: QValues) -> list[HeldBackDecision]:
    """The states of these episodes with at least two candidates, valued by a Q model.

    Args:
        episodes: of tasks from which the Q model has not learned.
        q_values: of candidates after a history.
    """
    return [_decision(visited, q_values) for visited in _branching(episodes)]


def _branching(episodes: Sequence[LearnedEpisode]) -> Iterator[_Visited]:
    found: dict[tuple[object, ...], _Visited] = {}
    for episode in episodes:
        for history, action, drawn in zip(episode.states, episode.actions, episode.choices, strict=True):
            key = (episode.task, *(_read(message) for message in history))
            visited = found.setdefault(key, _Visited(episode.task, history))
            visited.add(action, episode.reward, drawn)
    return (visited for visited in found.values() if len(visited.replies) > 1)


def _read(message: Message) -> object:
    return message_key(message) if message.role == "assistant" else message


def _decision(visited: _Visited, q_values: QValues) -> HeldBackDecision:
    effects, replies = tuple(visited.replies), tuple(visited.replies.values())
    prior = prior_of(replies, counts=[visited.votes[effect] for effect in effects])
    return HeldBackDecision(
        visited.task,
        tuple(q_values(visited.history, replies)),
        prior.log_shares,
        [tuple(visited.outcomes[effect]) for effect in effects],
        effects.index(visited.greedy) if visited.greedy in effects else None,
    )
