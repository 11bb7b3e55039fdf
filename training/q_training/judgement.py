"""Judgement of a trained Q model on held-back decision groups: its prior, and its licence.

It is judged as it will be served, by the prior that is fitted on those decisions. The licence's
temperatures are cross-fitted over halves of the tasks, so that none is judged by its own decisions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from qguide.qnet.models.licence import Licence
from qguide.qnet.models.manifest import PriorSection
from qguide.training.algorithms.choice_quality import ScoredChoice
from qguide.training.licence.evidence import HeldBackDecision, evidence_of
from qguide.training.licence.verdict import licence_of
from qguide.training.q_training.fitted_prior import fitted_prior, log_prior_of


@dataclass(frozen=True, slots=True)
class Judgement:
    """Sections of the manifest that held-back decisions give.

    Attributes:
        prior: None where too few decisions inform, and Q alone chooses.
        licence: None where there is no held-back decision, so that nothing judged the Q model.
    """

    prior: PriorSection | None
    licence: Licence | None


def judge(choices: Sequence[ScoredChoice]) -> Judgement:
    """Judge a Q model by its values of the candidates of held-back decisions."""
    prior = fitted_prior(choices)
    return Judgement(prior, _licence(choices, prior) if choices else None)


def _licence(choices: Sequence[ScoredChoice], prior: PriorSection | None) -> Licence:
    by = prior.by if prior else "votes"
    decisions = [
        HeldBackDecision(
            choice.task,
            choice.q_values,
            log_prior_of(choice, by),
            [(value,) for value in choice.values],
            choice.greedy,
        )
        for choice in choices
    ]
    return licence_of(evidence_of(decisions, tau=None if prior else 0.0))
