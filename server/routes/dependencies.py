"""FastAPI dependencies of the routes, as named types.

All of them are coroutines, because FastAPI runs plain functions in a thread. Steps have a single
dependency without sub-dependencies, because resolving each one costs time at every request.
"""

from typing import Annotated, cast

from fastapi import Depends, Header, Request
from starlette.convertors import PathConvertor, register_url_convertor

from qguide.qnet.decision.deadline import Deadline
from qguide.server.episodes.service import Episodes
from qguide.server.guidance.guided_step import GuidedStepService
from qguide.server.guidance.score_step import ScoringService
from qguide.server.learning.service import Learning
from qguide.server.middleware.drain import Drain
from qguide.server.observability.exposition import Exposition
from qguide.server.q_models.build import Models
from qguide.server.settings.settings import Settings
from qguide.server.upstreams.health import UpstreamWatch
from qguide.server.upstreams.vllm_process import VllmProcess


class AnyTextConvertor(PathConvertor):
    """A path parameter of any characters: starlette's `path` takes no line break."""

    regex = "(?s:.*)"


register_url_convertor("text", AnyTextConvertor())


async def _settings(request: Request) -> Settings:
    return cast(Settings, request.app.state.settings)


async def _models(request: Request) -> Models:
    return cast(Models, request.app.state.models)


async def _exposition(request: Request) -> Exposition:
    return cast(Exposition, request.app.state.exposition)


async def _episodes(request: Request) -> Episodes:
    return cast(Episodes, request.app.state.episodes)


async def _upstreams(request: Request) -> UpstreamWatch:
    return cast(UpstreamWatch, request.app.state.upstreams)


async def _vllm(request: Request) -> VllmProcess | None:
    return cast("VllmProcess | None", request.app.state.vllm)


async def _drain(request: Request) -> Drain:
    return cast(Drain, request.app.state.drain)


async def _learning(request: Request) -> Learning:
    return cast(Learning, request.app.state.learning)


SettingsDep = Annotated[Settings, Depends(_settings)]
ModelsDep = Annotated[Models, Depends(_models)]
EpisodesDep = Annotated[Episodes, Depends(_episodes)]
ExpositionDep = Annotated[Exposition, Depends(_exposition)]
UpstreamsDep = Annotated[UpstreamWatch, Depends(_upstreams)]
VllmDep = Annotated[VllmProcess | None, Depends(_vllm)]
LearningDep = Annotated[Learning, Depends(_learning)]
DrainDep = Annotated[Drain, Depends(_drain)]

TIMEOUT_HEADER = "X-QGuide-Timeout-S"


WantedS = Annotated[
    float | None,
    Header(
        alias=TIMEOUT_HEADER,
        gt=0,
        allow_inf_nan=False,
        description="time limit of this request in seconds; the server's own limit still applies",
    ),
]


def _deadline(settings: Settings, wanted_s: float | None) -> Deadline:
    """The server's time limit, or the caller's if it is shorter."""
    remedy = f"request less, allow more time ({TIMEOUT_HEADER}, QGUIDE_TIMEOUT_S) or retry later"
    return Deadline.after(min(settings.timeout_s, wanted_s or settings.timeout_s), remedy=remedy)


async def guided_steps(request: Request, wanted_s: WantedS = None) -> GuidedStepService:
    """The service of one request for guided steps."""
    state = request.app.state
    deadline = _deadline(state.settings, wanted_s)
    return GuidedStepService(
        state.settings,
        state.models,
        state.episodes,
        state.paraphraser,
        state.metrics,
        deadline,
        session_id=_session_id(request),
        agent_session=getattr(request.state, "agent_session", ""),
        outcome=_outcome(request),
        learning=state.learning,
    )


async def scorings(request: Request, wanted_s: WantedS = None) -> ScoringService:
    """The service of one request for scores."""
    state = request.app.state
    deadline = _deadline(state.settings, wanted_s)
    return ScoringService(
        state.settings,
        state.models,
        state.episodes,
        state.metrics,
        deadline,
        session_id=_session_id(request),
        outcome=_outcome(request),
        learning=state.learning,
    )


def _session_id(request: Request) -> str | None:
    """The episode that the URL or the header names; see `qguide.server.middleware.sessions`."""
    return getattr(request.state, "session_id", None)


def _outcome(request: Request) -> float | None:
    """The outcome in the header `X-QGuide-Outcome`; see `qguide.server.middleware.sessions`."""
    return getattr(request.state, "outcome", None)


StepperDep = Annotated[GuidedStepService, Depends(guided_steps)]
ScoringDep = Annotated[ScoringService, Depends(scorings)]
