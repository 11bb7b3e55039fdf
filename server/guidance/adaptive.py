"""Adaptive M in guided steps: with which Q models it can be, and what Q has to exceed."""

from dataclasses import replace

from qguide.qnet.errors import InvalidRequestError
from qguide.qnet.types import History
from qguide.server.episodes.state import Episode
from qguide.server.guidance.step_types import GuidedStepRequest
from qguide.server.messages.schemas import StepOptions
from qguide.server.q_models.served import QModelLease


def comparable(
    asked: GuidedStepRequest, q_model: QModelLease, *, adaptive_wanted: bool
) -> GuidedStepRequest:
    """The request without adaptive M if its Q-values are places in the order of one step."""
    if not q_model.ranks or not asked.options.adaptive:
        return asked
    if adaptive_wanted:
        raise InvalidRequestError(
            f"adaptive compares Q with the previous step's, but {q_model.id} is "
            f"{'a judge' if q_model.judge else 'a rule'} that ranks the candidates of one step; "
            "leave adaptive out, or name another Q model (a judge with the mode 'score')"
        )
    return replace(asked, options=asked.options.model_copy(update={"adaptive": False}))


def previous_q(
    options: StepOptions, history: History, episode: Episode | None, q_model: str
) -> float | None:
    """The Q that adaptive M has to exceed; None at an episode's first step."""
    if not options.adaptive:
        return None
    if options.previous_q is None and options.episode_id is None:
        raise InvalidRequestError(
            "adaptive compares Q with the previous step's, but neither episode_id nor previous_q "
            "is given; send one of them"
        )
    if options.previous_q is None and episode is not None:
        return episode.previous_q(history, q_model=q_model)
    return options.previous_q
