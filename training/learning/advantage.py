"""Values of states and advantages of actions from whole episodes, by cross-fitted TD(lambda).

One outcome a trajectory teaches little about its single steps: most of its variance comes from
other steps, and from the task. So the value V of the states is fitted first, and each step is
credited with what it changed:

    G_t = (1 - lambda) V(s_t+1) + lambda G_t+1, and G_T the outcome     (Sutton and Barto, 12.3)
    A(s_t, a_t) - E A(s_t, ·) ~ G_t - V(s_t)

V of a state comes from other tasks or episodes (cross-fitting), so that no step is judged by its
own luck. E A is left out of the fit, also where the agent's draws are known: to learn actions less
the mean of the draws (as in the R-learner; Nie and Wager, 2021) forgets what episodes tell of an
action in states where it is usual. Held-back actions are judged beside that mean; where the choice
was at random, each draw weighs by its propensity. Where rewards on the way are recorded, a value is
what is earned plus what is to come, and only the latter is fitted. Traces that a random action cuts
(Retrace; Munos et al., 2016) did not help. V and A are linear in hashed features, of words and of
facts (`qguide.qnet.features.facts`), which are fitted apart: what few facts tell would be lost among words.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from qguide.qnet.chat_messages import message_key
from qguide.qnet.features.hashing import Hasher, mean_of
from qguide.qnet.features.state_action import candidate_features, state_features, state_of
from qguide.qnet.types import History, Message
from qguide.training.learning.episodes import HeldBack, LearnedEpisode, folds_of, units_of
from qguide.training.learning.ridge import Design, Floats, designs, reweighted_ridge, ridge
from qguide.training.trajectory import Drawn

PENALTIES: Final = (10.0, 30.0, 100.0)
_REWEIGHTED_PENALTY: Final = 10.0
VALUE_PENALTY: Final = 30.0
_STEPS_OF_PRIOR: Final = 50
"""Steps by which it is presumed that words and facts tell as much."""
_OTHERS: Final = 2
"""Actions of other states that stand for draws which are unknown."""
_SEED: Final = 0

_Regression = Callable[[Design, Floats], tuple[Floats, float]]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a fit.

    Attributes:
        trace: lambda; 1 credits every step with the whole outcome, 0 with the next state's value.
        alpha: penalty of the squared weights of A; features come in families of length 1. None
            takes the one of `PENALTIES` that does best on held-back tasks, or the reweighted fit.
        rounds: fits of V, each on the returns that the one before makes.
        held_back: what is judged by a fit to the others.
    """

    trace: float = 0.5
    alpha: float | None = None
    rounds: int = 2
    held_back: HeldBack = "tasks"


@dataclass(frozen=True, slots=True)
class Steps:
    """All decisions of some episodes as matrices.

    Attributes:
        states, actions: their features.
        others: mean features of what else could have been done, in the columns of `actions`: of the
            agent's draws, or where those are unknown of actions of other states.
        outcome: (n,) of each decision's episode.
        earned: (n,) outcome if the episode had ended before the decision; 0 where unknown.
        last: (n,) true at an episode's last decision.
        units: what each decision is held back with, its task or its episode.
    """

    states: Design
    actions: Design
    others: Design
    outcome: Floats
    earned: Floats
    last: NDArray[np.bool_]
    units: tuple[str, ...]

    def where(self, chosen: NDArray[np.bool_]) -> "Steps":
        """Some of the decisions, of whole episodes."""
        return Steps(
            self.states.where(chosen),
            self.actions.where(chosen),
            self.others.where(chosen),
            self.outcome[chosen],
            self.earned[chosen],
            self.last[chosen],
            tuple(unit for unit, kept in zip(self.units, chosen, strict=True) if kept),
        )


@dataclass(frozen=True, slots=True)
class Fit:
    """Weights of values and advantages in the columns of a design; value(s) = values @ s + mean.

    Attributes:
        mean: value of a state of which nothing is known.
        unearned: weights and mean of the part of a value that is not earned yet; None where what
            is earned on the way does not help to foretell the outcome.
    """

    values: Floats
    advantages: Floats
    mean: float
    unearned: tuple[Floats, float] | None = None

    def values_of(self, steps: Steps) -> Floats:
        """(n,) value of each state, by all that is known of it."""
        weights, mean = self.unearned or (self.values, self.mean)
        told: Floats = steps.states.rows @ weights + mean
        return told if self.unearned is None else steps.earned + told


def steps_of(episodes: Sequence[LearnedEpisode], hasher: Hasher, *, held_back: HeldBack = "tasks") -> Steps:
    """Features of all decisions."""
    chance = Random(_SEED)
    anything = [action for episode in episodes for action in episode.actions]
    states, actions, others = [], [], []
    before: History | None = None
    for episode in episodes:
        for history, action, drawn in zip(episode.states, episode.actions, episode.choices, strict=True):
            if history is not before:  # candidates of one decision group share it
                state, features, before = state_of(history, hasher), {}, history
            compared = drawn
            if not _tells_choice(action, drawn):
                compared = tuple(map(Drawn, chance.choices(anything, k=_OTHERS)))
            for message in (action, *(one.message for one in compared)):
                if (effect := message_key(message)) not in features:
                    features[effect] = candidate_features(state, message)
            states.append(state_features(state))
            actions.append(features[message_key(action)])
            drawn_features = [features[message_key(one.message)] for one in compared]
            others.append(mean_of(drawn_features, _weights(compared)))
    lengths = [len(episode.actions) for episode in episodes]
    last = np.zeros(sum(lengths), np.bool_)
    last[np.cumsum(lengths) - 1] = True
    taken, beside = designs(actions, others, bits=hasher.bits)
    return Steps(
        states=designs(states, bits=hasher.bits)[0],
        actions=taken,
        others=beside,
        outcome=np.repeat([episode.reward for episode in episodes], lengths),
        earned=np.concatenate([episode.earned for episode in episodes]),
        last=last,
        units=tuple(unit for unit, n in zip(units_of(episodes, held_back), lengths, strict=True) for _ in range(n)),
    )


def _weights(drawn: Sequence[Drawn]) -> list[float]:
    """Likelihood that each draw is taken: its propensity, else as often as it was drawn."""
    return [one.count if one.propensity is None else one.propensity for one in drawn]


def _tells_choice(action: Message, drawn: Sequence[Drawn]) -> bool:
    effects = {message_key(one.message) for one in drawn}
    return sum(one.count for one in drawn) > 1 and message_key(action) in effects


def fit(steps: Steps, options: Options) -> Fit:
    """Weights from these decisions."""
    folds = np.array(folds_of(steps.units))
    states = _Folded(steps.states, folds)
    values, earned = _first_values(steps, states)
    returns = trace_returns(steps.outcome, values, steps.last, trace=options.trace)
    for _ in range(1, options.rounds):
        values = earned + states.foretold(returns - earned)
        returns = trace_returns(steps.outcome, values, steps.last, trace=options.trace)
    advantages = _advantages(steps, returns - values, steps.outcome - values, folds, options.alpha)
    weights, mean = _mean_of_halves(steps.states, returns)
    if not earned.any():
        return Fit(weights, advantages, mean)
    return Fit(weights, advantages, mean, _mean_of_halves(steps.states, returns - earned))


def _mean_of_halves(x: Design, y: Floats) -> tuple[Floats, float]:
    """Weights and intercept of the mean of two fits, one to words and one to facts."""
    weights, halves = np.zeros(len(x.columns.numbers)), x.by_halves()
    for mask, half in halves:
        weights[mask] = reweighted_ridge(half, y, alpha=VALUE_PENALTY)[0] / len(halves)
    return weights, float(y.mean())


class _Folded:
    """States by folds of tasks, for predictions of each fold by a fit to the others."""

    def __init__(self, x: Design, folds: NDArray[np.int_]) -> None:
        self._held = [folds == fold for fold in range(folds.max() + 1)] if folds.max() else []
        self._halves = [half for _, half in x.by_halves()]

    def foretold(self, y: Floats) -> Floats:
        """(n,) predictions of y, the mean of those of words and of facts; of a single fold its mean."""
        predicted = np.full(len(y), y.mean())
        for held in self._held:
            predicted[held] = np.mean([_foretold(half, y, held) for half in self._halves], axis=0)
        return predicted


def _foretold(x: Design, y: Floats, held: NDArray[np.bool_]) -> Floats:
    weights, mean = reweighted_ridge(x.where(~held), y[~held], alpha=VALUE_PENALTY)
    told: Floats = x.rows[held] @ weights + mean
    return told


def _first_values(steps: Steps, states: _Folded) -> tuple[Floats, Floats]:
    """(n,) values from outcomes alone, and the part of them that is earned already.

    Rewards on the way may be of no account for the outcome: that part is 0 if held-back outcomes
    are foretold better without it.
    """
    nothing = np.zeros(len(steps.outcome))
    parts = (nothing, steps.earned) if steps.earned.any() else (nothing,)
    found = [(e + states.foretold(steps.outcome - e), e) for e in parts]
    return min(found, key=lambda each: float(np.sum((steps.outcome - each[0]) ** 2)))


def _advantages(
    steps: Steps, changed: Floats, surprises: Floats, folds: NDArray[np.int_], alpha: float | None
) -> Floats:
    """Weights of a sum of two fits, one to words and one to facts.

    Each counts by what its preferred actions of held-back tasks earned (stacking; Breiman, 1996).
    """
    weights = np.zeros(len(steps.actions.columns.numbers))
    halves = steps.actions.by_halves()
    found = [
        _half_of_advantages(half, half.rows - steps.others.rows[:, mask], changed, surprises, folds, alpha)
        for mask, half in halves
    ]
    shares = _stacked(np.stack([preferred for _, preferred in found], axis=1), surprises)
    for (mask, _), (fitted, _), share in zip(halves, found, shares, strict=True):
        weights[mask] = share * fitted
    return weights


def _stacked(preferred: Floats, surprises: Floats) -> Floats:
    """Shares of each fit, drawn towards equal ones as by `_STEPS_OF_PRIOR` steps.

    Args:
        preferred: (n, fits) held-back advantages.
    """
    equal = np.full(preferred.shape[1], 1 / preferred.shape[1])
    presumed = np.diag(np.sqrt(_STEPS_OF_PRIOR * np.mean(preferred**2, axis=0)))
    shares, _ = nnls(np.concatenate([preferred, presumed]), np.concatenate([surprises, presumed @ equal]))
    return shares if shares.any() else equal


def _half_of_advantages(
    x: Design, beside_others: Any, changed: Floats, surprises: Floats, folds: NDArray[np.int_], alpha: float | None
) -> tuple[Floats, Floats]:
    """Weights by the regression whose preferred actions of held-back tasks have most credit, and those preferences.

    See `qguide.training.licence.credit`. The least squared error would choose by the size of the
    advantages, of which a choice does not depend.

    Args:
        beside_others: (n, m) features of the actions less the mean of what else could be done.
    """
    tried: list[_Regression] = [partial(ridge, alpha=each) for each in ((alpha,) if alpha is not None else PENALTIES)]
    if alpha is None:
        tried.append(partial(reweighted_ridge, alpha=_REWEIGHTED_PENALTY))
    preferred = np.zeros((len(tried), len(changed)))
    for fold in range(folds.max() + 1) if folds.max() else ():
        held = folds == fold
        others, own = x.where(~held), beside_others[held]
        for number, regress in enumerate(tried):
            preferred[number, held] = own @ regress(others, changed[~held])[0]
    sizes = np.maximum(np.linalg.norm(preferred, axis=1), 1e-12)
    best = int(np.argmax(preferred @ surprises / sizes))
    return tried[best](x, changed)[0], preferred[best]


def trace_returns(outcome: Floats, values: Floats, last: NDArray[np.bool_], *, trace: float) -> Floats:
    """(n,) lambda-return of each decision, episodes one after the other.

    Args:
        values: (n,) of the state before each decision.
        trace: lambda, in [0, 1].
    """
    returns = outcome.astype(np.float64)
    for i in range(len(returns) - 2, -1, -1):
        if not last[i]:
            returns[i] = (1 - trace) * values[i + 1] + trace * returns[i + 1]
    return returns
