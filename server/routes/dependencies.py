"""FastAPI dependencies of the routes, as named types.

All of them are coroutines, because FastAPI runs plain functions in a thread. Steps have a single
dependency without sub-dependencies, because resolving each one costs time at every request.

Their endpoints have direct routes, too, without FastAPI's routing and dependencies: FastAPI finds a
route twice, opens two exit stacks, solves dependencies and validates parameters at each request,
which took a third of a step's own time. A direct route stands before FastAPI's route of the same
path and calls the same endpoint. A request with other headers than ordinary ones goes on to
FastAPI's route, from which the OpenAPI document is made.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any, Final, cast, get_type_hints

from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from qguide.qnet.decision.guide import Deadline
from qguide.server.episodes.service import Episodes
from qguide.server.guidance.guided_step import GuidedStepService
from qguide.server.guidance.score_step import ScoringService
from qguide.server.http.bodies import body_schema, parse_body
from qguide.server.http.middleware import Drain
from qguide.server.learning.service import Learning
from qguide.server.observability.exposition import Exposition
from qguide.server.q_models.build import Models
from qguide.server.settings.settings import Settings
from qguide.server.upstreams.health import UpstreamWatch
from qguide.server.upstreams.vllm_process import VllmProcess

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
ServiceOf = Callable[[Request], Awaitable[Any]]
"""Makes the service of one request, as the endpoint's dependency would."""
_JSON: Final = b"application/json"


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
    """The episode that the URL or the header names; see `qguide.server.http.addresses`."""
    return getattr(request.state, "session_id", None)


def _outcome(request: Request) -> float | None:
    """The outcome in the header `X-QGuide-Outcome`; see `qguide.server.http.addresses`."""
    return getattr(request.state, "outcome", None)


StepperDep = Annotated[GuidedStepService, Depends(guided_steps)]
ScoringDep = Annotated[ScoringService, Depends(scorings)]


class DirectRoute(BaseRoute):
    """Serves a POST endpoint that takes a body and one service.

    Args:
        route: FastAPI's route of the endpoint.
        service: makes the value of the endpoint's parameter `parameter`.
        unless: lower-case names of headers that only FastAPI's route reads.
    """

    def __init__(
        self, route: APIRoute, *, parameter: str, service: ServiceOf, unless: Iterable[bytes]
    ) -> None:
        hints = get_type_hints(route.endpoint, include_extras=True)
        self._route = route
        self._endpoint = route.endpoint
        self._parameter = parameter
        self._service = service
        self._unless = frozenset(unless)
        self._body = body_schema(route)
        self._takes_request = hints.get("request") is Request
        responds = isinstance(hints["return"], type) and issubclass(hints["return"], Response)
        self._answer = None if responds else TypeAdapter[Any](hints["return"])

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match an ordinary POST to the path."""
        ordinary = (
            scope["type"] == "http"
            and scope["path"] == self._route.path
            and scope["method"] == "POST"
            and not scope.get("root_path")
            and self._has_ordinary_headers(scope)
        )
        return (Match.FULL, {"route": self._route}) if ordinary else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; what is wrong with its body is raised for the error handlers."""
        request = Request(scope, receive, send)
        body = await parse_body(request, self._body)
        given = {"body": body, self._parameter: await self._service(request)}
        if self._takes_request:
            given["request"] = request
        response = self._response(await self._endpoint(**given))
        await response(scope, receive, send)

    def _response(self, answer: Any) -> Response:
        if self._answer is None:
            assert isinstance(answer, Response)
            return answer
        return Response(
            self._answer.dump_json(answer, by_alias=True), media_type="application/json"
        )

    def _has_ordinary_headers(self, scope: Scope) -> bool:
        declared = []
        for name, value in scope["headers"]:
            if name == b"content-type":
                declared.append(value)
            elif name in self._unless:
                return False
        return declared == [_JSON]


def prepend_routes(app: FastAPI, routes: Iterable[DirectRoute]) -> None:
    """Put direct routes before all others, so that they are tried first."""
    app.router.routes[:0] = routes
