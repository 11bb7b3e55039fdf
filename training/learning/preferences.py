"""Preferences of the agent itself for the actions that it took: by votes, and by its greedy reply.

Each is centred: the mean over the agent's draws in the state is 0, as an advantage's is. Where the
draws of a state were not recorded, or were all alike, nothing is known, and the preference is NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from qnet.action_key import message_key
from qnet.decision.prior import prior_of
from qnet.types import Message
from training.learning.episodes import Episode
from training.learning.ridge import Floats
from training.trajectory import Drawn

MOST_TAU: Final = 1_000.0
"""Temperature of a Q model that adds nothing to the votes."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One state's candidates of different effect.

    Attributes:
        counts: how often each was drawn.
        taken: index of the action that was taken.
        greedy: index of the greedy reply; None if unknown.
    """

    candidates: tuple[Message, ...]
    counts: tuple[int, ...]
    taken: int
    greedy: int | None

    def centred(self, values: Sequence[float]) -> float:
        """Value of the action that was taken over the mean of the agent's draws."""
        return values[self.taken] - float(np.average(values, weights=self.counts))


def choice_of(action: Message, drawn: Sequence[Drawn]) -> Choice | None:
    """The choice behind an action; None where nothing tells what else could have been done."""
    counts: dict[str, int] = {}
    first: dict[str, Message] = {}
    for one in drawn:
        effect = message_key(one.message)
        first.setdefault(effect, one.message)
        counts[effect] = counts.get(effect, 0) + one.count
    effects, numbers, taken = list(counts), tuple(counts.values()), message_key(action)
    if len(effects) < 2 or taken not in counts:
        return None
    greedy = next((effects.index(message_key(d.message)) for d in drawn if d.greedy), None)
    return Choice(tuple(first.values()), numbers, effects.index(taken), greedy)


def choices_of(episodes: Sequence[Episode]) -> list[Choice | None]:
    """The choice behind every action, in order."""
    return [
        choice_of(action, drawn)
        for episode in episodes
        for action, drawn in zip(episode.actions, episode.choices, strict=True)
    ]


def votes_preference(choice: Choice | None) -> float:
    """Log share of the draws as the server has it, centred."""
    if choice is None:
        return np.nan
    return choice.centred(prior_of(choice.candidates, counts=choice.counts).log_shares)


def greedy_preference(choice: Choice | None) -> float:
    """1 for the greedy reply and 0 for any other, centred."""
    if choice is None or choice.greedy is None:
        return np.nan
    return choice.centred(np.eye(len(choice.candidates))[choice.greedy].tolist())


def fitted_tau(advantages: Floats, votes: Floats, surprises: Floats) -> float | None:
    """Weight of the votes beside Q that explains best what was earned beyond expectation.

    The least squares of G - V on A and the centred log share; None where the votes never vary.
    """
    known = ~np.isnan(votes)
    if not np.any(votes[known]):
        return None
    pair = np.stack([advantages[known], votes[known]], axis=1)
    (of_q, of_votes), *_ = np.linalg.lstsq(pair, surprises[known], rcond=None)
    if of_votes <= 0:
        return 0.0
    return float(min(of_votes / of_q, MOST_TAU)) if of_q > 0 else MOST_TAU
