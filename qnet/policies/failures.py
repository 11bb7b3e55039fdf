"""Failures of an upstream: its health check, and its errors as what they mean to the caller."""

import asyncio
import re
from typing import Final

import httpx

from qguide.qnet.body_limits import AnswerTooLargeError, UnknownEncodingError, read_bounded
from qguide.qnet.errors import (
    HistoryTooLongError,
    QGuideError,
    UpstreamBusyError,
    UpstreamError,
    UpstreamRefusedError,
    UpstreamUnavailableError,
    UpstreamUnknownModelError,
)
from qguide.qnet.policies.answer_parsing import parse
from qguide.qnet.policies.answers import Refusal, read_refusal, retry_after_s

FORBIDDEN: Final = (401, 403)


async def health_problem(http: httpx.AsyncClient, *, timeout: httpx.Timeout, max_answer_bytes: int) -> str | None:
    """Reason why an upstream cannot be used; "" if it can be.

    An upstream without a list of models is healthy: a 404 or a 501 shows that it answers. None if it
    could not be asked because all connections were busy, which says nothing about it.
    """
    try:
        async with asyncio.timeout((timeout.connect or 0) + (timeout.read or 0)):
            async with http.stream("GET", "models", timeout=timeout) as response:
                await read_bounded(response, max_bytes=max_answer_bytes)
    except (AnswerTooLargeError, UnknownEncodingError) as error:
        return str(error)
    except httpx.PoolTimeout:
        return None
    except TimeoutError:
        return "did not finish its answer in time"
    except (httpx.TransportError, httpx.DecodingError) as error:
        return f"does not answer ({type(error).__name__})"
    if response.status_code in FORBIDDEN:
        return f"refuses this server's key with {response.status_code}"
    ill = response.is_server_error and response.status_code != _NOT_IMPLEMENTED
    return f"answers with {response.status_code}" if ill else ""


_REFUSED: Final = (400, 413, 422)
_UNKNOWN: Final = 404
_NOT_IMPLEMENTED: Final = 501
_BUSY: Final = 429
_OVERLOADED: Final = (503, 529)
_PASSING: Final = (408, 502, 504)
_QUOTA: Final = "insufficient_quota"
_PASSING_KINDS: Final = frozenset(("overloaded_error", "rate_limit_error", "rate_limit_exceeded", "server_error"))
_OF_STREAMS: Final = re.compile(r"\bstream(s|ing|ed|_options)?\b", re.IGNORECASE)


async def failure_of(response: httpx.Response, name: str, *, is_patient: bool) -> QGuideError:
    """The error that an answer other than a 200 means to the caller.

    Args:
        name: of the upstream.
        is_patient: any failure of the server's may be tried again.
    """
    status = response.status_code
    if status in FORBIDDEN:
        return UpstreamError(f"upstream {name} refused this server's key with {status}")
    refusal = await parse(read_refusal, response.content)
    if status in _REFUSED:
        message = f"upstream {name} refused: {refusal.reason}"
        if refusal.exceeds_context:
            return HistoryTooLongError(message)
        return UpstreamRefusedError(
            message, upstream_code=refusal.code, upstream_type=refusal.kind, parameter=refusal.parameter
        )
    wait_s = retry_after_s(response.headers.get("retry-after"))
    if status == _BUSY:
        # A quota that is used up does not come back within a request's time.
        return UpstreamBusyError(
            f"upstream {name} takes no more requests now; try later",
            retry_after_s=wait_s,
            retriable=is_patient or refusal.code != _QUOTA,
            upstream_code=refusal.code,
            upstream_type=refusal.kind,
        )
    if status == _UNKNOWN:
        return UpstreamUnknownModelError(f"upstream {name} does not know its model or its path: {refusal.reason}")
    if status in _OVERLOADED:
        return UpstreamUnavailableError(
            f"upstream {name} answered with {status}: it is overloaded or down; try later",
            retry_after_s=wait_s,
            retriable=True,
        )
    return UpstreamError(
        f"upstream {name} answered with {status}",
        retry_after_s=wait_s,
        retriable=status in _PASSING or (is_patient and response.is_server_error),
    )


def refuses_streams(error: UpstreamRefusedError) -> bool:
    """True if it seems to be the stream that was refused, by the field or the reason."""
    _, _, reason = str(error).partition(" refused: ")
    return any(map(_OF_STREAMS.search, (error.parameter or "", reason)))


def stream_failure(refusal: Refusal, name: str) -> QGuideError:
    """The error that an event of a stream tells, whose status was 200."""
    if refusal.exceeds_context:
        return HistoryTooLongError(f"upstream {name} refused: {refusal.reason}")
    kind = refusal.kind or refusal.code
    return UpstreamUnavailableError(
        f"upstream {name} broke off its answer with an error{f' ({kind})' if kind else ''}",
        retriable=kind in _PASSING_KINDS,
    )
