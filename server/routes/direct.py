"""Direct routes: the endpoints of every step without FastAPI's routing and dependencies.

FastAPI finds a route twice, opens two exit stacks, solves dependencies and validates parameters at
each request, which took a third of a step's own time. A direct route stands before FastAPI's route
of the same path and calls the same endpoint. A request with other headers than ordinary ones goes
on to FastAPI's route, from which the OpenAPI document is made.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, get_type_hints

from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from qguide.server.bodies.parsing import parse_body
from qguide.server.bodies.route import body_schema

ServiceOf = Callable[[Request], Awaitable[Any]]
"""Makes the service of one request, as the endpoint's dependency would."""

_JSON: Final = b"application/json"


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
