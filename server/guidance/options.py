"""Options of a step: the request's wish, else the setting's, else what fits the Q model."""

import asyncio
from dataclasses import dataclass
from typing import Literal, Protocol

from qguide.qnet.decision.decide import Fallback
from qguide.qnet.decision.history_window import LongHistory
from qguide.qnet.decision.prior import PriorBy
from qguide.qnet.decision.selection import DEFAULT_TAU, SelectionName
from qguide.qnet.errors import InvalidRequestError
from qguide.qnet.features.domain import Domain
from qguide.qnet.types import History
from qguide.server.episodes.state import Episode
from qguide.server.guidance.step_types import GuidedStepRequest
from qguide.server.messages.schemas import StepOptions
from qguide.server.q_models.served import ServedQModel
from qguide.server.settings.settings import Settings

OutOfDomain = Literal["unguided", "guide"]
"""Answer to a state outside the Q model's domain: the likeliest candidate, or the Q model's."""


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
    q_model: ServedQModel,
    *,
    prior: PriorBy | None = None,
) -> SelectionRule:
    """The rule by which a request's action is chosen."""
    fitted = q_model.manifest.prior if q_model.manifest else None
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


def fallback_of(asked: GuidedStepRequest, settings: Settings) -> Fallback:
    """The answer if no Q is available.

    An agent in front of an upstream goes on without a Q, as it did before QGuide was between them.
    """
    default: Fallback = "first" if asked.policy.upstream_model else "error"
    return asked.options.fallback or settings.fallback or default


def long_history_mode(asked: GuidedStepRequest, settings: Settings) -> LongHistory:
    """The answer to a history that is too long for the Q model."""
    wanted, own = asked.options, settings.long_history
    if own is None and settings.fallback is None and asked.policy.upstream_model:
        own = "window"
    if wanted.long_history is not None or own == "window":
        return wanted.long_history or "window"
    return wanted.fallback or own or fallback_of(asked, settings)


def domain_of(
    q_model: ServedQModel, wanted: OutOfDomain | None, settings: Settings
) -> Domain | None:
    """The domain that a request has to be in; None where it is guided all the same."""
    mode = wanted or settings.out_of_domain
    return q_model.domain if mode == "unguided" else None


async def reason_outside(domain: Domain | None, history: History) -> str:
    """The reason why a state is outside; "" inside. Read on a thread: a history may be long."""
    if domain is None:
        return ""
    distance = await asyncio.to_thread(domain.distance, history)
    return distance.reason if distance.outside else ""


def is_adaptive(options: StepOptions, q_model: ServedQModel, *, in_episodes: bool) -> bool:
    """True if M is adaptive, which compares Q of one step with Q of the step before.

    Args:
        in_episodes: the setting: it is so where the caller says nothing, and the step is one of an
            episode.
    """
    if not q_model.ranks:
        by_setting = in_episodes and options.episode_id is not None
        return by_setting if options.adaptive is None else options.adaptive
    if options.adaptive:
        raise InvalidRequestError(
            f"adaptive compares Q with the previous step's, but {q_model.id} is "
            f"{'a judge' if q_model.judge else 'a rule'} that ranks the candidates of one step; "
            "leave adaptive out, or name another Q model (a judge with the mode 'score')"
        )
    return False


def previous_q(
    options: StepOptions, history: History, episode: Episode | None, q_model: str
) -> float | None:
    """The Q that adaptive M has to exceed; None at an episode's first step."""
    if options.previous_q is None and options.episode_id is None:
        raise InvalidRequestError(
            "adaptive compares Q with the previous step's, but neither episode_id nor previous_q "
            "is given; send one of them"
        )
    if options.previous_q is None and episode is not None:
        return episode.previous_q(history, q_model=q_model)
    return options.previous_q
