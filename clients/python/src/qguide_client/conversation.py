"""Retries, shared by the sync and the async client; nothing here waits or touches the network.

A conversation is a generator. It yields the seconds to wait before the next attempt, is sent the
attempt's reply, and returns the response that is an answer. Each client drives it with its own kind
of waiting and sending.
"""

import math
import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from qguide_client.calls import Call
from qguide_client.errors import NoAnswerError, QGuideError, RefusedError, TimedOutError, UnreachableError, class_of

Reply = httpx.Response | httpx.RequestError
Conversation = Generator[float, Reply, httpx.Response]

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_HOPELESS = (httpx.UnsupportedProtocol, httpx.TooManyRedirects, httpx.DecodingError)
_TURNED_AWAY = (429, 503)
_PERHAPS_DONE = (502,)


@dataclass(frozen=True, slots=True)
class Retry:
    """Number and timing of attempts; only requests that are safe to repeat are retried.

    Attributes:
        attempts: attempts in all; 1 never retries.
        first_wait_s: upper bound of the first wait, doubled for each further one; each wait is
            drawn at random between 0 and its bound.
        max_wait_s: longest wait; if the server asks for a longer one, its refusal is raised at
            once.
    """

    attempts: int = 3
    first_wait_s: float = 0.25
    max_wait_s: float = 10.0

    def wait_s(self, error: QGuideError, *, attempt: int, chance: float) -> float | None:
        """Seconds to wait before the next attempt; None to give up.

        Args:
            attempt: number of the failed attempt, from 1.
            chance: a random number in [0, 1), so that many clients do not retry at once.
        """
        if attempt >= self.attempts:
            return None
        longest = min(self.max_wait_s, self.first_wait_s * 2.0 ** (attempt - 1))
        asked_s = error.retry_after_s if isinstance(error, RefusedError) else None
        if asked_s is None:
            return chance * longest
        return asked_s + chance * self.first_wait_s if asked_s <= self.max_wait_s else None


def converse(
    call: Call[Any],
    retry: Retry,
    *,
    request_id: str,
    chance: Callable[[], float] = random.random,
    clock: Callable[[], float] = time.monotonic,
) -> Conversation:
    """Retry a call until it is answered or a further attempt is pointless.

    Args:
        clock: current time in seconds, for the call's deadline.

    Raises:
        QGuideError: the last attempt failed.
    """
    wait_s: float | None = 0.0
    ends_s = math.inf if call.deadline_s is None else clock() + call.deadline_s
    attempt = 0
    while True:
        attempt += 1
        reply = yield wait_s or 0.0
        if isinstance(reply, httpx.Response) and _answers(call, reply):
            return reply
        error = error_of(reply, request_id=request_id)
        wait_s = None
        if _safe_to_repeat(call, reply):
            wait_s = retry.wait_s(error, attempt=attempt, chance=chance())
        if wait_s is None or clock() + wait_s >= ends_s:
            raise error from (None if isinstance(reply, httpx.Response) else reply)


def error_of(reply: Reply, *, request_id: str) -> QGuideError:
    """The error of a failed attempt."""
    if isinstance(reply, httpx.Response):
        return _refusal(reply, request_id)
    return _silence(reply, request_id)


def _answers(call: Call[Any], response: httpx.Response) -> bool:
    return response.is_success or response.status_code in call.answering


def _safe_to_repeat(call: Call[Any], reply: Reply) -> bool:
    if isinstance(reply, httpx.Response):
        turned_away = reply.status_code in _TURNED_AWAY
        return turned_away or (call.repeatable and reply.status_code in _PERHAPS_DONE)
    if isinstance(reply, _NOT_SENT):
        return True
    # Not after a timeout: the server may still be at work on the first request.
    return call.repeatable and not isinstance(reply, (*_HOPELESS, httpx.TimeoutException))


def _silence(error: httpx.RequestError, request_id: str) -> NoAnswerError:
    try:
        where = f"{error.request.method} {error.request.url.copy_with(query=None)}"
    except RuntimeError:  # httpx has no request here if none could be made
        where = "the server"
    if isinstance(error, httpx.TimeoutException) and not isinstance(error, _NOT_SENT):
        return TimedOutError(
            f"{where} gave no answer in time; draw fewer candidates, or raise timeout_s or deadline_s",
            request_id=request_id,
        )
    reason = str(error) or type(error).__name__
    return UnreachableError(
        f"{where} cannot be reached ({reason}); check that the server runs and base_url is right", request_id=request_id
    )


def _refusal(response: httpx.Response, request_id: str) -> RefusedError:
    code, message = _said(response)
    status = response.status_code
    return class_of(status, code)(
        message or f"HTTP {status} {response.reason_phrase} from {response.url.path}",
        status=status,
        code=code,
        request_id=_request_id(response) or request_id,
        retry_after_s=retry_after_s(response.headers.get("retry-after"), now_s=time.time()),
    )


def _said(response: httpx.Response) -> tuple[str, str]:
    """Code and message of an error; both empty if a proxy answered in the server's place."""
    try:
        error = response.json()["error"]
        return str(error["code"] or ""), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return "", ""


def _request_id(response: httpx.Response) -> str:
    return str(response.headers.get("x-request-id", ""))


def retry_after_s(header: str | None, *, now_s: float) -> float | None:
    """Seconds of a Retry-After header, which may be a number or a date; None if it is neither."""
    if header is None:
        return None
    if header.strip().isascii() and header.strip().isdigit():
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - now_s)
    except ValueError:
        return None
