"""The rule by which a step chooses: the request's, else the setting's, else the Q model's own."""

from dataclasses import dataclass
from typing import Protocol

from qguide.qnet.decision.prior import PriorBy
from qguide.qnet.decision.selection import DEFAULT_TAU, SelectionName
from qguide.qnet.models.manifest import PriorSection
from qguide.server.guidance.domain import OutOfDomain
from qguide.server.q_models.served import QModelLease
from qguide.server.settings.settings import Settings


class SelectionOptions(Protocol):
    """Fields of a request that concern the choice."""

    @property
    def selection(self) -> SelectionName | None: ...  # noqa: D102
    @property
    def tau(self) -> float | None: ...  # noqa: D102
    @property
    def out_of_domain(self) -> OutOfDomain | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class SelectionRule:
    """Rule for the choice of one request; see `qguide.qnet.decision.decide.Guidance`."""

    selection: SelectionName
    tau: float
    prior: PriorBy
    greedy_weight: float = 0.0


def selection_rule(
    options: SelectionOptions,
    settings: Settings,
    q_model: QModelLease,
    *,
    prior: PriorBy | None = None,
) -> SelectionRule:
    """The rule of a request."""
    fitted = _fitted(q_model)
    wanted = options.selection or (None if options.tau is None else "posterior")
    known: SelectionName = "argmax" if fitted is None else "posterior"
    selection = wanted or settings.selection or known
    by = prior or settings.prior or (fitted.by if fitted else "votes")
    # It was fitted beside the prior of that source.
    weighed = fitted is not None and selection == "posterior" and by == fitted.by
    taus = (options.tau, settings.tau, fitted.tau if fitted else None, DEFAULT_TAU)
    return SelectionRule(
        selection=selection,
        tau=next(tau for tau in taus if tau is not None),
        prior=by,
        greedy_weight=fitted.greedy_weight if fitted and weighed else 0.0,
    )


def _fitted(q_model: QModelLease) -> PriorSection | None:
    manifest = q_model.model.manifest
    return manifest.prior if manifest else None
