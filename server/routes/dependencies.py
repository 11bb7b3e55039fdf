"""FastAPI dependencies of the routes, as named types.

All of them are coroutines, because FastAPI runs plain functions in a thread. Steps have a single dependency without
sub-dependencies, because resolving each one costs time at every request.

Their endpoints have direct routes, too, without FastAPI's routing and dependencies: FastAPI finds a route twice, opens
two exit stacks, solves dependencies and validates parameters at each request, which took a third of a step's own time.
A direct route stands before FastAPI's route of the same path and calls the same endpoint. A request with other headers
than ordinary ones goes on to FastAPI's route, from which the OpenAPI document is made.
"""

from typing import Annotated, Any, Final, get_args, get_type_hints

from fastapi import Depends, Header, Request
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
from qguide.server.q_models.registry import Models
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
_TIMEOUT: Final = TIMEOUT_HEADER.lower().encode()
_JSON: Final = b"application/json"


class AnyTextConvertor(PathConvertor):
    """A path parameter of any characters: starlette's `path` takes no line break."""

    regex = "(?s:.*)"


register_url_convertor("text", AnyTextConvertor())


def of_app(name: str) -> Any:
    """A dependency: what the application's state has under a name."""

    async def read(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(read)


SettingsDep = Annotated[Settings, of_app("settings")]
ModelsDep = Annotated[Models, of_app("models")]
EpisodesDep = Annotated[Episodes, of_app("episodes")]
ExpositionDep = Annotated[Exposition, of_app("exposition")]
UpstreamsDep = Annotated[UpstreamWatch, of_app("upstreams")]
VllmDep = Annotated[VllmProcess | None, of_app("vllm")]
LearningDep = Annotated[Learning, of_app("learning")]
DrainDep = Annotated[Drain, of_app("drain")]


def _of_request(request: Request, wanted_s: float | None) -> dict[str, Any]:
    """Fields that both services have: the application's, and the request's own.

    The time limit is the server's, or the caller's if it is shorter. The URL or headers may name an episode and its
    outcome; see `qguide.server.http.middleware`.
    """
    app, state = request.app.state, request.state
    limit_s = min(app.settings.timeout_s, wanted_s or app.settings.timeout_s)
    remedy = f"request less, allow more time ({TIMEOUT_HEADER}, QGUIDE_TIMEOUT_S) or retry later"
    return {
        "settings": app.settings,
        "models": app.models,
        "episodes": app.episodes,
        "metrics": app.metrics,
        "deadline": Deadline.after(limit_s, remedy=remedy),
        "session_id": getattr(state, "session_id", None),
        "outcome": getattr(state, "outcome", None),
        "earned": getattr(state, "earned", None),
        "learning": app.learning,
    }


async def guided_steps(request: Request, wanted_s: WantedS = None) -> GuidedStepService:
    """The service of one request for guided steps."""
    return GuidedStepService(
        **_of_request(request, wanted_s),
        paraphraser=request.app.state.paraphraser,
        agent_session=getattr(request.state, "agent_session", ""),
    )


async def scorings(request: Request, wanted_s: WantedS = None) -> ScoringService:
    """The service of one request for scores."""
    return ScoringService(**_of_request(request, wanted_s))


StepperDep = Annotated[GuidedStepService, Depends(guided_steps)]
ScoringDep = Annotated[ScoringService, Depends(scorings)]


class DirectRoute(BaseRoute):
    """Serves a POST endpoint that takes a body and a service."""

    def __init__(self, route: APIRoute) -> None:
        hints = get_type_hints(route.endpoint, include_extras=True)
        self._route = route
        self._endpoint = route.endpoint
        dependencies = ((name, hint) for name, hint in hints.items() if hint in (StepperDep, ScoringDep))
        self._services = {name: get_args(hint)[1].dependency for name, hint in dependencies}
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
        given = {"body": body, **{name: await service(request) for name, service in self._services.items()}}
        if self._takes_request:
            given["request"] = request
        answer = await self._endpoint(**given)
        if self._answer is not None:
            answer = Response(self._answer.dump_json(answer, by_alias=True), media_type="application/json")
        await answer(scope, receive, send)

    def _has_ordinary_headers(self, scope: Scope) -> bool:
        declared = []
        for name, value in scope["headers"]:
            if name == b"content-type":
                declared.append(value)
            elif name == _TIMEOUT:  # which only FastAPI's route reads
                return False
        return declared == [_JSON]
