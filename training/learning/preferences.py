"""Preferences of the agent itself for the actions that it took: by votes, and by its greedy reply.

Each is centred: the mean over the agent's draws in the state is 0, as an advantage's is. Where the
draws of a state were not recorded, or were all alike, nothing is known, and the preference is NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import nnls

from qguide.qnet.chat_messages import message_key
from qguide.qnet.decision.selection import prior_of
from qguide.qnet.types import Message
from qguide.training.learning.episodes import LearnedEpisode
from qguide.training.learning.ridge import Floats
from qguide.training.trajectory import Drawn

MOST_TAU: Final = 1_000.0
"""Temperature of a Q model that adds nothing to the votes, where outcomes are of 0 to 1."""

MOST_WEIGHT: Final = 5.0
"""Of the greedy reply; by it that outweighs 100 votes."""
_GREEDY: Final = 2.0
"""Presumed weight of the greedy reply, by which it outweighs seven votes: greedy play did no worse
than votes in any of ten environments."""
_STEPS_OF_PRIOR: Final = 100
"""Steps by which it is presumed that an advantage is earned in full. A dozen known steps alone said
of every other early fit that it adds nothing to the votes."""


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


def choices_of(episodes: Sequence[LearnedEpisode]) -> list[Choice | None]:
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


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the agent's own preferences beside Q.

    Attributes:
        tau: of the log share of the draws.
        greedy: added to the log share of the greedy reply.
    """

    tau: float
    greedy: float = 0.0


def fitted_weights(advantages: Floats, votes: Floats, greedy: Floats, surprises: Floats, *, usual: float) -> Weights:
    """Weights that explain best what was earned beyond expectation.

    The least squares, of no weight below 0, of G - V on A, the centred log share, and the centred
    greedy reply where that is known. They are drawn towards 1, `usual` and twice that, as by 100
    steps. Where votes never vary, those of the votes and of the greedy reply are what is presumed.

    Args:
        usual: weight of the log share where nothing is known.
    """
    known = ~np.isnan(votes)
    told = bool(np.any(votes[known]))
    used = known if told else np.ones_like(known)
    steps = np.nan_to_num(np.stack([advantages, votes, greedy], axis=1)[used])
    presumed = np.diag(np.sqrt(_STEPS_OF_PRIOR * np.mean(steps**2, axis=0)))
    design = np.concatenate([steps, presumed])
    earned = np.concatenate([surprises[used], presumed @ [1.0, usual, _GREEDY * usual]])
    (of_q, of_votes, of_greedy), _ = nnls(design, earned)
    if not told:
        of_votes, of_greedy = usual, _GREEDY * usual
    # Q / tau has to stay, so votes weigh a little where the greedy reply alone counts.
    of_votes = max(of_votes, of_greedy / MOST_WEIGHT)
    if not of_votes:
        return Weights(0.0)
    # As large as outcomes are, so is Q, which is divided by it.
    most = MOST_TAU * max(1.0, usual)
    tau = min(of_votes / of_q, most) if of_q else most
    return Weights(float(tau), float(of_greedy / of_votes))
