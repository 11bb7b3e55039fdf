r"""Parsing and validation of a body, once, within limits, and the route that does so.

Lone surrogates, which JSON can express but UTF-8 cannot encode, are refused in any field:
`"\ud800"` passes every JSON parser and then fails wherever it is written: to an upstream, a file,
Redis or a metric's label.
"""

import json
import re
from collections.abc import Callable, Coroutine, Iterable
from email.message import Message
from functools import partial
from json import JSONDecodeError, detect_encoding
from typing import Any, Final, TypeVar, get_type_hints

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError

from qguide.qnet.pace import paced, rested
from qguide.server.http.admission import Caller
from qguide.server.http.errors import MalformedBodyError
from qguide.server.http.long_bodies import LongBodies, has_more_values, is_long

T = TypeVar("T")

_BYTES_PER_VALUE: Final = 512
"""The least that a value takes on average in a body of the maximum size."""
_LEAST_VALUES: Final = 1_000
"""Values that every body may have, however small `QGUIDE_MAX_BODY_BYTES` is."""
_MOST_FAULTS: Final = 100
"""More are counted and not described: describing one takes as long as validating ten values."""
_UNREADABLE: Final = "the body is not JSON in UTF-8, or nested too deeply; send one JSON object"
_UTF8: Final = ("utf-8", "utf-8-sig")
# A high surrogate without a low one after it, or a low one without a high one before it; or an
# escaped backslash before a `u`, after which these patterns can be wrong.
_ESCAPED: Final = re.compile(
    rb"\\(?:\\u|u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F]))"
)
_RAW: Final = re.compile(rb"\xed[\xa0-\xbf]")  # UTF-8 has no such bytes; Python's JSON takes them
_WINDOW_BYTES: Final = 65_536
_LONGEST_BYTES: Final = len(rb"\ud83d\ude00")
_SHOWN_CHARACTERS: Final = 40
_Place = tuple[Any, str | int] | None
"""The place of the list or object around a value, and the value's name in it; None for the root."""


async def parse_body(request: Request, schema: TypeAdapter[Any]) -> Any:
    """The validated body of a request; a long one is parsed in a thread, in its caller's turn.

    Raises:
        MalformedBodyError: it is not JSON, has too many values or faults, or a lone surrogate.
        RequestValidationError: it does not fit the schema.
    """
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
    body = _parsed(raw, most)
    try:
        return schema.validate_python(body)
    except ValidationError as error:
        if error.error_count() > _MOST_FAULTS:
            raise MalformedBodyError(
                f"the body has {error.error_count():,} faults; send only fields and types that "
                "this route's schema in /docs has"
            ) from None
        faults = error.errors(include_url=False)
    raise RequestValidationError(
        [fault | {"loc": ("body", *fault["loc"])} for fault in faults], body=body
    )


def _parsed(raw: bytes, most: int) -> Any:
    try:
        if (encoding := detect_encoding(raw)) not in _UTF8:
            raw = raw.decode(encoding, "surrogatepass").encode(errors="surrogatepass")
        if has_more_values(raw, most):
            raise MalformedBodyError(
                f"the body has more than {most:,} JSON values; send fewer, or raise "
                "QGUIDE_MAX_BODY_BYTES: it allows one for 512 bytes"
            )
        body = json.loads(raw, object_hook=rested)
    except JSONDecodeError as error:
        raise MalformedBodyError(
            f"the body is not JSON at character {error.pos}: {error.msg}"
        ) from None
    except (ValueError, RecursionError):
        raise MalformedBodyError(_UNREADABLE) from None
    if may_hold_lone_surrogate(raw) and (place := lone_surrogate_in(body)):
        raise MalformedBodyError(
            f"{place} contains a lone surrogate (half a character); send valid Unicode"
        )
    return body


def may_hold_lone_surrogate(body: bytes) -> bool:
    """True unless the bytes of JSON in UTF-8 rule it out, which saves a look at most bodies."""
    # Search for one byte first, in a hundredth of the pattern's time.
    patterns = [p for byte, p in ((b"\\", _ESCAPED), (b"\xed", _RAW)) if byte in body]
    for start in paced(range(0, len(body) if patterns else 0, _WINDOW_BYTES)):
        end = start + _WINDOW_BYTES
        found = [p.search(body, start, end + _LONGEST_BYTES) for p in patterns]
        # A match that begins behind the window is cut off, perhaps; the next window has it whole.
        if any(match and match.start() < end for match in found):
            return True
    return False


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
