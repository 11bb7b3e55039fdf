"""Values of states and advantages of actions from whole episodes, by cross-fitted TD(lambda).

One outcome a trajectory teaches little about its single steps: most of its variance comes from
other steps, and from the task. So the value V of the states is fitted first, and each step is
credited with what it changed:

    G_t = (1 - lambda) V(s_t+1) + lambda G_t+1, and G_T the outcome     (Sutton and Barto, 12.3)
    A(s_t, a_t) - E A(s_t, ·) ~ G_t - V(s_t)

V of a state comes from episodes of other tasks (cross-fitting), so that no step is judged by its
own luck. E A is left out of the fit, also where the agent's draws are known: to learn actions less
the mean of the draws (as in the R-learner; Nie and Wager, 2021) forgets what episodes tell of an
action in states where it is usual. Held-back actions are judged beside that mean; where the choice
was at random, each draw weighs by its propensity. Traces that a random action cuts (Retrace; Munos
et al., 2016) did not help. V and A are linear in hashed features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qguide.qnet.features.hashing import Hasher, mean_of
from qguide.qnet.features.state_action import candidate_features, state_features, state_of
from qguide.qnet.types import Message, message_key
from qguide.training.learning.episodes import Episode, folds_of
from qguide.training.learning.ridge import Design, Floats, design, ridge
from qguide.training.trajectory import Drawn

PENALTIES: Final = (3.0, 10.0, 30.0, 100.0)
VALUE_PENALTY: Final = 10.0
_OTHERS: Final = 2
"""Actions of other states that stand for draws which are unknown."""
_SEED: Final = 0


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a fit.

    Attributes:
        trace: lambda; 1 credits every step with the whole outcome, 0 with the next state's value.
        alpha: penalty of the squared weights of A; features come in families of length 1. None
            takes the one of `PENALTIES` that does best on held-back tasks.
        rounds: fits of V, each on the returns that the one before makes.
    """

    trace: float = 0.5
    alpha: float | None = None
    rounds: int = 2


@dataclass(frozen=True, slots=True)
class Steps:
    """All decisions of some episodes as matrices.

    Attributes:
        states, actions: their features.
        others: mean features of what else could have been done, in the columns of `actions`: of the
            agent's draws, or where those are unknown of actions of other states.
        outcome: (n,) of each decision's episode.
        last: (n,) true at an episode's last decision.
        tasks: of each decision.
    """

    states: Design
    actions: Design
    others: Design
    outcome: Floats
    last: NDArray[np.bool_]
    tasks: tuple[str, ...]

    def where(self, chosen: NDArray[np.bool_]) -> "Steps":
        """Some of the decisions, of whole episodes."""
        return Steps(
            self.states.where(chosen),
            self.actions.where(chosen),
            self.others.where(chosen),
            self.outcome[chosen],
            self.last[chosen],
            tuple(task for task, kept in zip(self.tasks, chosen, strict=True) if kept),
        )


@dataclass(frozen=True, slots=True)
class Fit:
    """Weights of values and advantages in the columns of a design; value(s) = values @ s + mean.

    Attributes:
        mean: value of a state of which nothing is known.
    """

    values: Floats
    advantages: Floats
    mean: float


def steps_of(episodes: Sequence[Episode], hasher: Hasher) -> Steps:
    """Features of all decisions."""
    chance = Random(_SEED)
    anything = [action for episode in episodes for action in episode.actions]
    states, actions, others = [], [], []
    for episode in episodes:
        for history, action, drawn in zip(
            episode.states, episode.actions, episode.choices, strict=True
        ):
            state, compared = state_of(history, hasher), drawn
            if not _tells_choice(action, drawn):
                compared = tuple(map(Drawn, chance.choices(anything, k=_OTHERS)))
            states.append(state_features(state))
            actions.append(candidate_features(state, action))
            others.append(
                mean_of(
                    [candidate_features(state, one.message) for one in compared],
                    _weights(compared),
                )
            )
    lengths = [len(episode.actions) for episode in episodes]
    last = np.zeros(sum(lengths), np.bool_)
    last[np.cumsum(lengths) - 1] = True
    both = design([*actions, *others], bits=hasher.bits)
    first = np.arange(2 * len(actions)) < len(actions)
    return Steps(
        states=design(states, bits=hasher.bits),
        actions=both.where(first),
        others=both.where(~first),
        outcome=np.repeat([episode.reward for episode in episodes], lengths),
        last=last,
        tasks=tuple(e.task for e, n in zip(episodes, lengths, strict=True) for _ in range(n)),
    )


def _weights(drawn: Sequence[Drawn]) -> list[float]:
    """Likelihood that each draw is taken: its propensity, else as often as it was drawn."""
    return [one.count if one.propensity is None else one.propensity for one in drawn]


def _tells_choice(action: Message, drawn: Sequence[Drawn]) -> bool:
    """True for the draws that an action was taken from."""
    effects = {message_key(one.message) for one in drawn}
    return sum(one.count for one in drawn) > 1 and message_key(action) in effects


def fit(steps: Steps, options: Options) -> Fit:
    """Weights from these decisions."""
    folds = np.array(folds_of(steps.tasks))
    returns = steps.outcome
    values = returns
    for _ in range(options.rounds):
        values = _cross_fitted(steps.states, returns, folds, alpha=VALUE_PENALTY)
        returns = trace_returns(steps.outcome, values, steps.last, trace=options.trace)
    changed = returns - values
    alpha = options.alpha or _best_penalty(steps, changed, steps.outcome - values, folds)
    advantages, _ = ridge(steps.actions, changed, alpha=alpha)
    weights, mean = ridge(steps.states, returns, alpha=VALUE_PENALTY)
    return Fit(weights, advantages, mean)


def _best_penalty(
    steps: Steps, changed: Floats, surprises: Floats, folds: NDArray[np.int_]
) -> float:
    """The penalty by which preferred actions of held-back tasks have most credit.

    See `qguide.training.licence.credit`. The least squared error would choose by the size of the
    advantages, of which a choice does not depend.
    """
    beside_others = steps.actions.rows - steps.others.rows

    def credit(alpha: float) -> float:
        preferred = np.zeros(len(changed))
        for fold in range(folds.max() + 1):
            held = folds == fold
            weights, _ = ridge(steps.actions.where(~held), changed[~held], alpha=alpha)
            preferred[held] = beside_others[held] @ weights
        return float(preferred @ surprises) / max(float(np.linalg.norm(preferred)), 1e-12)

    return max(PENALTIES, key=credit) if folds.max() else PENALTIES[1]


def trace_returns(
    outcome: Floats, values: Floats, last: NDArray[np.bool_], *, trace: float
) -> Floats:
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


def _cross_fitted(x: Design, y: Floats, folds: NDArray[np.int_], *, alpha: float) -> Floats:
    """(n,) predictions of each fold by a fit to the others; of a single fold its mean."""
    predicted = np.full(len(y), y.mean())
    for fold in range(folds.max() + 1) if folds.max() else ():
        held = folds == fold
        weights, mean = ridge(x.where(~held), y[~held], alpha=alpha)
        predicted[held] = x.where(held).rows @ weights + mean
    return predicted
