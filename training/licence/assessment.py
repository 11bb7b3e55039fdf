"""Assessment of a trained Q model on held-back decision groups: its prior, and its licence.

It is assessed as it will be served, by the prior that is fitted on those decisions. The licence's
temperatures are cross-fitted over halves of the tasks, so none is assessed by its own decisions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from qguide.qnet.decision.selection import log_likelihoods, log_votes
from qguide.qnet.models.manifest import Licence, PriorSection
from qguide.training.algorithms.choice_quality import ScoredChoice
from qguide.training.algorithms.posterior_temperature import TauFit, ValuedDecision, fit_tau
from qguide.training.licence.evidence import HeldBackDecision, evidence_of
from qguide.training.licence.verdict import licence_of


def fitted_prior(choices: Sequence[ScoredChoice]) -> PriorSection | None:
    """The manifest's section; None where too few decisions inform, and argmax remains.

    Votes are always tried, the policy's log-likelihood where every candidate has one. It is taken
    only if its choices have a higher expected label, because hosted policies often state none.

    Args:
        choices: of tasks that were not trained on, with the labels of their candidates.
    """
    votes = fit_tau([_valued(choice, _votes(choice)) for choice in choices])
    if votes is None:
        return None
    if all(known := [_known(choice.logprobs) for choice in choices]):
        priors = zip(choices, known, strict=True)
        likelihood = fit_tau([_valued(c, _likelihoods(logprobs)) for c, logprobs in priors])
        if likelihood is not None and likelihood.point.outcome > votes.point.outcome:
            return _section(likelihood, "likelihood")
    return _section(votes, "votes")


def log_prior_of(choice: ScoredChoice, by: Literal["votes", "likelihood"]) -> tuple[float, ...]:
    """The log prior of a decision's candidates, as the server has it by that source."""
    return _votes(choice) if by == "votes" else _likelihoods(_known(choice.logprobs))


def _valued(choice: ScoredChoice, log_prior: Sequence[float]) -> ValuedDecision:
    return ValuedDecision(choice.task, choice.q_values, log_prior, choice.values)


def _votes(choice: ScoredChoice) -> tuple[float, ...]:
    return log_votes(range(len(choice.draws)), choice.draws)


def _likelihoods(logprobs: Sequence[float]) -> tuple[float, ...]:
    distinct = range(len(logprobs))  # one reply stands for each action of a group
    return log_likelihoods(distinct, distinct, logprobs)


def _known(logprobs: Sequence[float | None]) -> list[float]:
    """The log-likelihoods; none if one is missing."""
    known = [logprob for logprob in logprobs if logprob is not None]
    return known if len(known) == len(logprobs) else []


def _section(fit: TauFit, by: Literal["votes", "likelihood"]) -> PriorSection:
    return PriorSection(tau=fit.tau, by=by, curve=fit.curve, decisions=fit.decisions, tasks=fit.tasks)


@dataclass(frozen=True, slots=True)
class Assessment:
    """Sections of the manifest that held-back decisions give.

    Attributes:
        prior: None where too few decisions inform, and Q alone chooses.
        licence: None where there is no held-back decision, so that nothing assessed the Q model.
    """

    prior: PriorSection | None = None
    licence: Licence | None = None


def assess(
    choices: Sequence[ScoredChoice], *, fits_prior: bool = True, prior: PriorSection | None = None
) -> Assessment:
    """Assess a Q model by its values of the candidates of held-back decisions.

    Args:
        fits_prior: the draws are such as the server will see, so that a prior can be fitted beside them; otherwise
            it is assessed, as it is then served, beside the prior that it has.
        prior: that one; None chooses by Q alone.
    """
    prior = fitted_prior(choices) if fits_prior else prior
    return Assessment(prior, _licence(choices, prior, fitted=fits_prior) if choices else None)


def _licence(choices: Sequence[ScoredChoice], prior: PriorSection | None, *, fitted: bool) -> Licence:
    by = prior.by if prior else "votes"
    decisions = [
        HeldBackDecision(
            choice.task, choice.q_values, log_prior_of(choice, by), [(value,) for value in choice.values], choice.greedy
        )
        for choice in choices
    ]
    given = prior.tau if prior else 0.0
    return licence_of(evidence_of(decisions, tau=None if prior and fitted else given))
