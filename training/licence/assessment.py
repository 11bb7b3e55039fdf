"""Assessment of a trained Q model on held-back decision groups: its prior, and its licence.

It is assessed as it will be served, by the prior that is fitted on those decisions. The licence's
temperatures are cross-fitted over halves of the tasks, so none is assessed by its own decisions.
"""

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Self

from qguide.qnet.decision.selection import log_likelihoods, log_votes
from qguide.qnet.models.manifest import Licence, PriorSection
from qguide.training.algorithms.choice_quality import ScoredChoice, spread_of
from qguide.training.algorithms.posterior_temperature import TauFit, ValuedDecision, fit_tau
from qguide.training.licence.evidence import HeldBackDecision, evidence_of
from qguide.training.licence.verdict import licence_of

_SEED: Final = 0


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
    known = _known(choice.logprobs)
    return _likelihoods(known) if by == "likelihood" and known else _votes(choice)


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


@dataclass(frozen=True, slots=True)
class ScoredQModel:
    """A Q model's values of held-back decisions.

    Attributes:
        choices: of tasks that it was not trained on.
        prior: beside which it is served, where none is fitted to the decisions.
        fits_prior: see `assess`.
    """

    choices: Sequence[ScoredChoice]
    prior: PriorSection | None = None
    fits_prior: bool = True

    @property
    def spread(self) -> float:
        """Standard deviation of its values between the candidates of a state."""
        return spread_of(self.choices)

    def assess(self) -> Assessment:
        """Its prior and its licence, as if there were no other."""
        return assess(self.choices, fits_prior=self.fits_prior, prior=self.prior)

    def of_tasks(self, tasks: Collection[str]) -> Self:
        """The decisions of some tasks."""
        return replace(self, choices=[one for one in self.choices if one.task in tasks])


def licence_of_choice(tried: Mapping[str, ScoredQModel], best: str) -> Licence:
    """Licence of the best of several Q models, by the decisions that chose it.

    The lowest of several regrets is partly luck. So the interval of its gain is wider, and the reason tells the gain
    without that luck: each half of the tasks judges what the other half would choose.

    Args:
        tried: by their names, on the same decisions.
    """
    taken = tried[best]
    prior = taken.assess().prior
    licence = _licence(taken.choices, prior, fitted=taken.fits_prior, tried=len(tried))
    if len(tried) == 1:
        return licence
    known = list(dict.fromkeys(one.task for one in taken.choices if len(set(one.values)) > 1))
    random.Random(_SEED).shuffle(known)  # tasks of a kind may come at equal distances
    decisions: list[HeldBackDecision] = []
    for half, other in ((known[::2], known[1::2]), (known[1::2], known[::2])):
        name, fitted = lowest_regret({name: one.of_tasks(other) for name, one in tried.items()})
        decisions += _held_back(tried[name].of_tasks(half).choices, fitted, tau=fitted.tau if fitted else 0.0)
    gain = evidence_of(decisions).gain
    reason = f"{licence.reason}; {gain:+.3f} where each half of the tasks judges what the other half chooses"
    return licence.model_copy(update={"reason": reason})


def lowest_regret(tried: Mapping[str, ScoredQModel]) -> tuple[str, PriorSection | None]:
    """Name of the Q model of the lowest regret, the first of equal ones, and its prior."""
    assessed = {name: one.assess() for name, one in tried.items()}
    best = min(assessed, key=lambda name: regret_of(assessed[name].licence))
    return best, assessed[best].prior


def regret_of(licence: Licence | None) -> float:
    """Regret of the choices as they are served; infinite where no decision told it."""
    served = licence.choosers.get("posterior") if licence else None
    return served.regret if served else math.inf


def _licence(choices: Sequence[ScoredChoice], prior: PriorSection | None, *, fitted: bool, tried: int = 1) -> Licence:
    given = prior.tau if prior else 0.0
    return licence_of(evidence_of(_held_back(choices, prior), tau=None if prior and fitted else given, tried=tried))


def _held_back(
    choices: Sequence[ScoredChoice], prior: PriorSection | None, *, tau: float | None = None
) -> list[HeldBackDecision]:
    """The decisions beside a prior, with its temperature if it is fitted to other tasks."""
    by = prior.by if prior else "votes"
    return [
        HeldBackDecision(
            choice.task,
            choice.q_values,
            log_prior_of(choice, by),
            [(value,) for value in choice.values],
            choice.greedy,
            tau=tau,
        )
        for choice in choices
    ]
