"""Parsing and validation of a body, once, within limits."""

import json
from collections.abc import Callable
from functools import partial
from json import JSONDecodeError, detect_encoding
from typing import Any, Final, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError

from qguide.server.access.rate_limits import Caller
from qguide.server.bodies.long_bodies import LongBodies, Pace, has_more_values, is_long
from qguide.server.bodies.surrogates import lone_surrogate_in, may_hold_lone_surrogate
from qguide.server.errors.types import MalformedBodyError

T = TypeVar("T")

_BYTES_PER_VALUE: Final = 512
"""The least that a value takes on average in a body of the maximum size."""
_LEAST_VALUES: Final = 1_000
"""Values that every body may have, however small `QGUIDE_MAX_BODY_BYTES` is."""
_MOST_FAULTS: Final = 100
"""More are counted and not described: describing one takes as long as validating ten values."""
_UNREADABLE: Final = "the body is not JSON in UTF-8, or nested too deeply; send one JSON object"
_UTF8: Final = ("utf-8", "utf-8-sig")


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
    return await _in_turn(request, work) if request.state.body_is_long else work(None)


async def translate_body(request: Request, work: Callable[[], T]) -> T:
    """The result of a pure function of the body; if that is long, it runs in the thread as well."""
    if request.state.body_is_long:
        return await _in_turn(request, lambda _: work())
    return work()


async def _in_turn(request: Request, work: Callable[[Pace], T]) -> T:
    bodies: LongBodies = request.app.state.long_bodies
    caller: Caller | None = getattr(request.state, "caller", None)
    return await bodies.work(caller.name if caller else "", work)


def most_values(max_body_bytes: int) -> int:
    """Maximum number of JSON values in a body, by its maximum size."""
    return max(_LEAST_VALUES, max_body_bytes // _BYTES_PER_VALUE)


def _validated(raw: bytes, schema: TypeAdapter[Any], most: int, pace: Pace | None) -> Any:
    body = _parsed(raw, most, pace)
    try:
        return schema.validate_python(body, context=pace)
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


def _parsed(raw: bytes, most: int, pace: Pace | None) -> Any:
    try:
        if (encoding := detect_encoding(raw)) not in _UTF8:
            raw = raw.decode(encoding, "surrogatepass").encode(errors="surrogatepass")
        if has_more_values(raw, most):
            raise MalformedBodyError(
                f"the body has more than {most:,} JSON values; send fewer, or raise "
                "QGUIDE_MAX_BODY_BYTES: it allows one for 512 bytes"
            )
        body = json.loads(raw, object_hook=pace.keep if pace else None)
    except JSONDecodeError as error:
        raise MalformedBodyError(
            f"the body is not JSON at character {error.pos}: {error.msg}"
        ) from None
    except (ValueError, RecursionError):
        raise MalformedBodyError(_UNREADABLE) from None
    if may_hold_lone_surrogate(raw, pace) and (place := lone_surrogate_in(body)):
        raise MalformedBodyError(
            f"{place} contains a lone surrogate (half a character); send valid Unicode"
        )
    return body
