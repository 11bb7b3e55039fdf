"""Learns a Q model without a network from recorded episodes, and assesses it on held-back tasks.

It is assessed by cross-fitting: each fifth of the tasks, or of the episodes, by a model of the
other four. So every recorded episode counts as evidence, and the model that is kept has learned
from all of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qguide.qnet.features.hashing import Hasher
from qguide.qnet.models.feature_q import FeatureQ, feature_q_of
from qguide.training.learning.advantage import Fit, Options, Steps, fit, steps_of
from qguide.training.learning.episodes import HeldBack, LearnedEpisode, folds_of, played_of, units_of
from qguide.training.learning.preferences import (
    Weights,
    choices_of,
    fitted_weights,
    greedy_preference,
    votes_preference,
)
from qguide.training.learning.recorded import recorded_decisions
from qguide.training.learning.ridge import Floats
from qguide.training.learning.vocabulary import hasher_reading
from qguide.training.licence.credit import FEWEST_UNITS, Credit, credit_of
from qguide.training.licence.evidence import PRIOR, Evidence, HeldBackDecision, evidence_of

_TAU_OF_ADVANTAGE: Final = 0.3
"""At a third, two errands' recordings and a help desk's chose as well as by Q alone; at the whole,
and at the temperature fitted on recorded decisions, up to 8 points worse."""


@dataclass(frozen=True, slots=True)
class Learned:
    """A Q model and what was found on tasks that it had not learned from.

    Attributes:
        weights: of the prior in its posterior, fitted on held-back steps. Where recordings do not
            tell the agent's draws, or few, votes weigh as a share of a usual advantage, and the
            greedy reply twice that; how much Q weighs is what its advantages earned.
    """

    model: FeatureQ
    evidence: Evidence
    credit: Credit
    weights: Weights


def judged_by(episodes: Sequence[LearnedEpisode]) -> HeldBack:
    """Units held back to judge a fit whose tasks come again: tasks, if they are enough for it.

    Where both are possible, held-back episodes led to no better fits (docs/results/learning.md).
    """
    tasks = {episode.task for episode in episodes}
    return "tasks" if len(tasks) >= FEWEST_UNITS else "episodes"


def learn(episodes: Sequence[LearnedEpisode], options: Options, hasher: Hasher) -> Learned:
    """The Q model of these episodes, assessed."""
    hasher = hasher_reading(episodes, hasher)
    steps = steps_of(episodes, hasher, held_back=options.held_back)
    held_back = _Assessor(episodes, steps, options, hasher)
    weights = held_back.weights()
    return Learned(
        _model(fit(steps, options), steps, hasher), evidence_of(held_back.decisions()), held_back.credit(), weights
    )


class _Assessor:
    """Predictions for each fold of tasks by a model of the others."""

    def __init__(self, episodes: Sequence[LearnedEpisode], steps: Steps, options: Options, hasher: Hasher) -> None:
        self._episodes = episodes
        self._steps = steps
        self._hasher = hasher
        self._of_episode = folds_of(units_of(episodes, options.held_back))
        self._of_step = np.repeat(self._of_episode, [len(e.actions) for e in episodes])
        self.advantages = np.zeros(len(steps.outcome))
        self._values = np.zeros(len(steps.outcome))
        self._choices = choices_of(episodes)
        self._votes = np.array([votes_preference(choice) for choice in self._choices])
        self._greedy = np.array([greedy_preference(choice) for choice in self._choices])
        self._fits: dict[int, Fit] = {}
        for fold in sorted(set(self._of_episode)) if len(set(self._of_episode)) > 1 else ():
            held = self._of_step == fold
            found = fit(steps.where(~held), options)
            self._fits[fold] = found
            mine = steps.where(held)
            difference = mine.actions.rows - mine.others.rows
            self.advantages[held] = difference @ found.advantages
            self._values[held] = found.values_of(mine)

    def decisions(self) -> Iterator[HeldBackDecision]:
        """The decisions of every fold, valued by the others' model and weights."""
        for fold, found in self._fits.items():
            mine = [e for e, f in zip(self._episodes, self._of_episode, strict=True) if f == fold]
            model = _model(found, self._steps, self._hasher)
            weights = self.weights(self._of_step != fold)
            for decision in recorded_decisions(mine, model.q_values):
                yield replace(decision, tau=weights.tau, greedy_weight=weights.greedy)

    @property
    def _surprises(self) -> Floats:
        return self._steps.outcome - self._values

    def weights(self, among: NDArray[np.bool_] | slice = slice(None)) -> Weights:
        """Weights of the posterior by some of the steps."""
        usual = _TAU_OF_ADVANTAGE * float(np.sqrt(np.mean(self.advantages**2)))
        columns = (self.advantages, self._votes, self._greedy, self._surprises)
        return fitted_weights(*(column[among] for column in columns), usual=usual)

    def credit(self) -> Credit:
        """Credit of the actions that the posterior prefers, on every step.

        Each fold's weights are fitted on the others.
        """
        preferred = self.advantages.copy()
        prior = np.full(len(preferred), np.nan)
        known = ~np.isnan(self._votes)
        for fold in self._fits:
            mine = (self._of_step == fold) & known
            weights = self.weights(self._of_step != fold)
            prior[mine] = self._votes[mine] + weights.greedy * np.nan_to_num(self._greedy[mine])
            preferred[mine] += weights.tau * prior[mine]
        # Q has to add to what the agent's own preferences tell together, not to each alone.
        both = np.where(np.isnan(self._greedy), np.nan, prior)
        own = {"votes": self._votes, "greedy": self._greedy, PRIOR: both}
        episodes = len(set(played_of(self._episodes)))
        return credit_of(preferred, self._surprises, self._steps.units, own, episodes=episodes)


def _model(found: Fit, steps: Steps, hasher: Hasher) -> FeatureQ:
    return feature_q_of(
        steps.states.columns.spread(found.values),
        steps.actions.columns.spread(found.advantages),
        mean=found.mean,
        hasher=hasher,
    )
