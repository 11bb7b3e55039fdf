"""FastAPI's route, with a body that is parsed and validated before, within our limits."""

from collections.abc import Callable, Coroutine
from email.message import Message
from typing import Any, get_type_hints

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from qguide.server.bodies.parsing import parse_body


class BodyRoute(APIRoute):
    """Route of an endpoint that may take a `body`.

    FastAPI itself parses bodies of any number of values on the event loop, and collects all faults
    of each. The parsed body passes its validation unchanged.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, behind our parser."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        schema = body_schema(self)

        async def handle_parsed(request: Request) -> Response:
            if _declares_json(request):
                request = _ParsedRequest(request, await parse_body(request, schema))
            return await handle(request)

        return handle_parsed


class _ParsedRequest(Request):
    """A request whose body has been read and parsed."""

    def __init__(self, request: Request, parsed: object) -> None:
        super().__init__(request.scope, request.receive)
        self._read = request
        self._parsed = parsed

    async def body(self) -> bytes:
        """The body as it arrived."""
        return await self._read.body()

    async def json(self) -> Any:
        """The validated body."""
        return self._parsed


def body_schema(route: APIRoute) -> TypeAdapter[Any]:
    """Validator of the endpoint's parameter `body`."""
    return TypeAdapter(get_type_hints(route.endpoint, include_extras=True)["body"])


def _declares_json(request: Request) -> bool:
    """True if FastAPI would take the body for JSON."""
    declared = Message()
    declared["content-type"] = request.headers.get("content-type", "")
    subtype = declared.get_content_subtype()
    return declared.get_content_maintype() == "application" and (
        subtype == "json" or subtype.endswith("+json")
    )
