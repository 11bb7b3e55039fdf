r"""A body's arrival, parsing and validation, once, within limits, and the route that does so.

Values are counted before a body is parsed: one may bring several errors, and most of a parse holds
the interpreter's lock. 1 MB of `[1,1,1,…]` took 8 s to refuse, and 16 MiB of empty lists stopped all
other threads for 15 s.

Lone surrogates, which JSON can express but UTF-8 cannot encode, are refused in any field:
`"\ud800"` passes every JSON parser and then fails wherever it is written: to an upstream, a file,
Redis or a metric's label.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable
from email.message import Message as Headers
from functools import partial
from json import JSONDecodeError, detect_encoding
from typing import Any, Final, TypeVar, get_type_hints

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qguide.qnet.body_limits import MARKS
from qguide.qnet.errors import OverloadedError, QGuideError
from qguide.qnet.turns import rested
from qguide.server.http.admission import Caller
from qguide.server.http.error_table import known_error_response
from qguide.server.http.errors import BodyTimeoutError, BodyTooLargeError, MalformedBodyError
from qguide.server.http.long_bodies import LONG_BYTES, LONG_VALUES, LongBodies
from qguide.server.http.middleware import HttpMiddleware

T = TypeVar("T")

_BYTES_PER_VALUE: Final = 512  # the least that a value takes on average in a body of the maximum size
_LEAST_VALUES: Final = 1_000  # values that every body may have, however small `QGUIDE_MAX_BODY_BYTES` is
_MOST_FAULTS: Final = 100  # more are counted and not described: describing one takes as long as validating ten values
_UNREADABLE: Final = "the body is not JSON in UTF-8, or nested too deeply; send one JSON object"
_UTF8: Final = ("utf-8", "utf-8-sig")
_MAY_BE_HALVES: Final = (rb"\ud", rb"\uD", b"\xed")
"""Beginnings of escaped and of raw surrogates; a body without any needs no search."""
_SHOWN_CHARACTERS: Final = 40
_WHOLE_BODIES: Final = 8  # memory for bodies that are still arriving, in bodies of the maximum size
_OF_BROWSERS: Final = ("origin", "sec-fetch-site")  # headers by which a browser says which page has a request sent
_GIVEN_UP: Final = 0.0  # a deadline in the past of the loop's clock, which marks a body that made room for others
_Place = tuple[Any, str | int] | None
"""The place of the list or object around a value, and the value's name in it; None for the root."""


class BodyReader(HttpMiddleware):
    """Reads the whole body within limits of size and time, and passes it on as one message.

    A slow body does not count as a running request, because the limits on those are applied after this middleware; so
    slow clients cannot lock others out. The memory of all arriving bodies is limited: when it is full, the body that
    has been arriving for longest is aborted.
    """

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, timeout_s: float) -> None:
        super().__init__(app)
        self._max_body_bytes = max_body_bytes
        self._max_arriving_bytes = _WHOLE_BODIES * max_body_bytes
        self._timeout_s = timeout_s  # time from the head of the request to the last byte of its body
        self._arriving: dict[asyncio.Timeout, int] = {}  # bytes of each body, in the order in which they began
        self._arriving_bytes = 0

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body: bytes | None = await self._read(scope, receive)
        except QGuideError as error:
            response = known_error_response(Request(scope), error)
            if isinstance(error, BodyTimeoutError | OverloadedError):
                response.headers["Connection"] = "close"  # the rest of the body is unread
            await response(scope, receive, send)
            return
        if body is None:  # the caller has hung up
            return

        async def whole() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            message = {"type": "http.request", "body": body, "more_body": False}
            body = None
            return message

        await self.app(scope, whole, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        announced = (value for name, value in scope["headers"] if name == b"content-length" and value.isdigit())
        if int(next(announced, 0)) > self._max_body_bytes:
            raise BodyTooLargeError(self._max_body_bytes)
        try:
            async with asyncio.timeout(self._timeout_s) as timeout:
                message = await receive()
                if message["type"] == "http.request" and message.get("more_body", False):
                    body = await self._read_on(message, receive, timeout)
                else:
                    body = message.get("body", b"") if message["type"] == "http.request" else None
        except TimeoutError:
            if timeout.when() == _GIVEN_UP:
                raise OverloadedError(
                    f"bodies still arriving hold more than {self._max_arriving_bytes:,} bytes together, and this one "
                    "has been arriving for longest; send it again, faster"
                ) from None
            raise BodyTimeoutError(self._timeout_s) from None
        if body is not None and len(body) > self._max_body_bytes:
            raise BodyTooLargeError(self._max_body_bytes)
        return body

    async def _read_on(self, message: Message, receive: Receive, timeout: asyncio.Timeout) -> bytes | None:
        self._arriving[timeout] = 0
        pieces: list[bytes] = []
        try:
            while True:
                pieces.append(message.get("body", b""))
                self._hold(timeout, len(pieces[-1]))
                if not message.get("more_body", False):
                    return b"".join(pieces)
                message = await receive()
                if message["type"] != "http.request":
                    return None
        finally:
            self._arriving_bytes -= self._arriving.pop(timeout, 0)

    def _hold(self, timeout: asyncio.Timeout, size: int) -> None:
        """Count received bytes; over the limit, abort the body that began first."""
        self._arriving[timeout] = self._arriving.get(timeout, 0) + size
        self._arriving_bytes += size
        if self._arriving[timeout] > self._max_body_bytes:
            raise BodyTooLargeError(self._max_body_bytes)
        if self._arriving_bytes > self._max_arriving_bytes:
            oldest = next(iter(self._arriving))
            self._arriving_bytes -= self._arriving.pop(oldest)
            oldest.reschedule(_GIVEN_UP)


def marks_in(body: bytes) -> int:
    """Upper bound for the number of values; marks within texts count as well."""
    return sum(map(body.count, MARKS))


def has_more_values(body: bytes, most: int) -> bool:
    """True if JSON in UTF-8 has more than `most` values; its texts may hold any marks."""
    if marks_in(body) <= most:
        return False
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > 4 * (most + 1):  # each value is at most two texts: itself and its name
        return True
    return marks_in(b"".join(plain.split(b'"')[::2])) > most


def is_long(body: bytes) -> bool:
    """True if a body is read in the thread."""
    return len(body) > LONG_BYTES or marks_in(body) > LONG_VALUES


async def parse_body(request: Request, schema: TypeAdapter[Any]) -> Any:
    """The validated body of a request; a long one is parsed in a thread, in its caller's turn."""
    raw = await request.body()
    if not raw:
        missing = {"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}
        raise RequestValidationError([missing])
    state = request.app.state
    work = partial(_validated, raw, schema, most_values(state.settings.max_body_bytes))
    request.state.body_is_long = is_long(raw)
    return await translate_body(request, work)


async def translate_body(request: Request, work: Callable[[], T]) -> T:
    """The result of a pure function of the body; that of a long one runs in the thread."""
    if not request.state.body_is_long:
        return work()
    bodies: LongBodies = request.app.state.long_bodies
    caller: Caller | None = getattr(request.state, "caller", None)
    return await bodies.work(caller.name if caller else "", work)


def most_values(max_body_bytes: int) -> int:
    """Maximum number of JSON values in a body, by its maximum size."""
    return max(_LEAST_VALUES, max_body_bytes // _BYTES_PER_VALUE)


def _validated(raw: bytes, schema: TypeAdapter[Any], most: int) -> Any:
    body = parsed_json(raw, most)
    try:
        return schema.validate_python(body)
    except ValidationError as error:
        if error.error_count() > _MOST_FAULTS:
            raise MalformedBodyError(
                f"the body has {error.error_count():,} faults; send only fields and types that this route's schema in "
                "/docs has"
            ) from None
        faults = error.errors(include_url=False)
    raise RequestValidationError([fault | {"loc": ("body", *fault["loc"])} for fault in faults], body=body)


def parsed_json(raw: bytes, most: int) -> Any:
    """The content of a body, of at most so many values."""
    try:
        if (encoding := detect_encoding(raw)) not in _UTF8:
            raw = raw.decode(encoding, "surrogatepass").encode(errors="surrogatepass")
        if has_more_values(raw, most):
            raise MalformedBodyError(
                f"the body has more than {most:,} JSON values; send fewer, or raise QGUIDE_MAX_BODY_BYTES: it allows "
                "one for 512 bytes"
            )
        body = json.loads(raw, object_hook=rested)
    except JSONDecodeError as error:
        raise MalformedBodyError(f"the body is not JSON at character {error.pos}: {error.msg}") from None
    except (ValueError, RecursionError):
        raise MalformedBodyError(_UNREADABLE) from None
    if any(half in raw for half in _MAY_BE_HALVES) and (place := lone_surrogate_in(body)):
        raise MalformedBodyError(f"{place} contains a lone surrogate (half a character); send valid Unicode")
    return body


def lone_surrogate_in(value: object) -> str | None:
    """Place of the first lone surrogate in parsed JSON, as `body.messages.0.content`."""
    waiting: list[tuple[_Place, Any]] = [(None, value)]
    while waiting:
        place, value = rested(waiting.pop())
        if isinstance(value, str):
            if not _is_whole(value):
                return _shown(place)
        elif isinstance(value, dict):
            if not all(map(_is_whole, value)):
                return f"a name in {_shown(place)}"
            waiting += _parts(place, value.items())
        elif isinstance(value, list):
            waiting += _parts(place, enumerate(value))
    return None


def _parts(around: _Place, parts: Iterable[tuple[str | int, Any]]) -> list[tuple[_Place, Any]]:
    """The parts of a list or object, the last one first, so that the first one is taken first."""
    return [((around, name), part) for name, part in reversed([*parts])]


def _shown(place: _Place) -> str:
    names: list[str] = []
    while place is not None:
        place, name = place
        names.append(str(name)[:_SHOWN_CHARACTERS])
    return ".".join(["body", *reversed(names)])


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class BodyRoute(APIRoute):
    """Route of an endpoint that may take a `body`.

    FastAPI itself parses bodies of any number of values on the event loop, and collects all faults of each. The parsed
    body passes its validation unchanged.
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


class UndeclaredBodyRoute(BodyRoute):
    """Route whose bodies are JSON whatever they are declared as, as Ollama's clients send them.

    What a web page sends has to declare JSON: else its browser would not ask whether the page may send it.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of a request that declares JSON."""
        handle = super().get_route_handler()

        async def handle_declared(request: Request) -> Response:
            if not any(name in request.headers for name in _OF_BROWSERS):
                headers = MutableHeaders(raw=[*request.scope["headers"]])
                headers["content-type"] = "application/json"
                scope = {**request.scope, "headers": headers.raw}
                request = Request(scope, request.receive)
            return await handle(request)

        return handle_declared


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
    declared = Headers()
    declared["content-type"] = request.headers.get("content-type", "")
    subtype = declared.get_content_subtype()
    return declared.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))
