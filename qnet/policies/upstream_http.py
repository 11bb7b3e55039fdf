"""Requests to an upstream over HTTP: bounded answers, and errors that name no address or key."""

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import httpx

from qguide.qnet.body_limits import (
    ACCEPT_ENCODING,
    AnswerTooLargeError,
    UnknownEncodingError,
    check_number_of_values,
    read_bounded,
)
from qguide.qnet.errors import InvalidRequestError, UpstreamError, UpstreamTimeoutError, UpstreamUnavailableError
from qguide.qnet.policies.answer_parsing import PassedEvents, is_stream
from qguide.qnet.policies.failures import FORBIDDEN
from qguide.qnet.policies.upstream_settings import UpstreamLimits
from qguide.qnet.work import session_headers, trace_headers

_STREAMED = 4  # times that a stream's bytes may be a whole answer's: each piece has a frame around it
_KEPT_S = 4.0
"""Longest time that an idle connection is used again. uvicorn, and so vLLM, closes it after 5 s: a
client that waits as long sends some requests into connections that are just being closed."""
_LARGE_CHARACTERS = 65_536
_NOT_IMPLEMENTED = 501
_BYTES_PER_VALUE = 8  # the least that a JSON value of an answer takes on average, if the answer is of full size

REPLICA_HEADER = "X-Replica"
"""Address of the server that answered, from a router in front of several."""


class UnreachableError(UpstreamUnavailableError):
    """No connection could be made, or it was lost."""


class UpstreamHttp:
    """Connections to one upstream."""

    def __init__(
        self,
        name: str,
        url: str,
        headers: dict[str, str],
        *,
        limits: UpstreamLimits,
        transport: httpx.AsyncBaseTransport | None,
    ) -> None:
        self._name = name
        self._limits = limits
        self._writing = asyncio.Lock()
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/") + "/",
            headers={"Content-Type": "application/json", "Accept-Encoding": ACCEPT_ENCODING} | headers,
            timeout=httpx.Timeout(
                limits.timeout_s,
                connect=limits.connect_timeout_s,
                pool=None if limits.is_patient else limits.connect_timeout_s,
            ),
            limits=httpx.Limits(
                max_connections=limits.max_connections,
                max_keepalive_connections=limits.max_connections,
                keepalive_expiry=_KEPT_S,
            ),
            transport=transport,
        )

    async def close(self) -> None:
        """Let go of the connections."""
        await self._http.aclose()

    async def health_problem(self) -> str | None:
        """Reason why the upstream cannot be used; "" if it can be.

        An upstream without a list of models is healthy: a 404 or a 501 shows that it answers. None if
        it could not be asked because all connections were busy, which says nothing about it.
        """
        limits = self._limits
        timeout = httpx.Timeout(limits.connect_timeout_s, read=limits.poll_timeout_s)
        try:
            async with asyncio.timeout(limits.connect_timeout_s + limits.poll_timeout_s):
                async with self._http.stream("GET", "models", timeout=timeout) as response:
                    await read_bounded(response, max_bytes=limits.max_answer_bytes)
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

    async def post(
        self,
        path: str,
        body: dict[str, Any],
        headers: dict[str, str],
        *,
        begun: asyncio.Event | None = None,
        passed: PassedEvents | None = None,
        cut_off: Callable[[bytes], None] | None = None,
    ) -> httpx.Response:
        """Send a JSON body; see `send`."""
        try:
            content = await self._written(body)
        except ValueError as error:
            raise InvalidRequestError(
                "the request holds NaN or Infinity, which is no JSON; send finite numbers"
            ) from error
        headers = headers | session_headers()
        return await self.send("POST", path, content, headers, begun=begun, passed=passed, cut_off=cut_off)

    async def send(
        self,
        method: str,
        path: str,
        content: str | bytes,
        headers: dict[str, str],
        *,
        query: Mapping[str, str] | None = None,
        begun: asyncio.Event | None = None,
        passed: PassedEvents | None = None,
        cut_off: Callable[[bytes], None] | None = None,
        is_parsed: bool = True,
    ) -> httpx.Response:
        """Send any request; its answer has any status.

        Args:
            begun: is set once an answer begins.
            passed: gets a stream as it comes.
            cut_off: gets what has arrived of a stream that is cancelled.
            is_parsed: the answer is JSON that is read here; False: it may be any bytes.
        """
        limits = self._limits
        try:
            async with self._http.stream(
                method, path, content=content, headers={**headers, **trace_headers()}, params=query
            ) as response:
                if begun and response.status_code == 200:
                    begun.set()
                most = limits.max_answer_bytes * (_STREAMED if is_stream(response) else 1)
                events = is_stream(response)
                most_values = most // _BYTES_PER_VALUE
                heard = partial(passed.add, most_values=most_values) if passed and events else None
                answer = await read_bounded(
                    response, max_bytes=most, events=events, heard=heard, cut_off=cut_off if events else None
                )
            if is_parsed:
                check_number_of_values(answer.content, most_values)
            return answer
        except AnswerTooLargeError as error:
            raise UpstreamError(
                f"upstream {self._name} {error}; ask for fewer or shorter candidates, or raise its max_answer_bytes"
            ) from error
        except UnknownEncodingError as error:
            raise UpstreamError(f"upstream {self._name} {error}") from error
        except httpx.PoolTimeout as error:
            raise UpstreamUnavailableError(
                f"all {limits.max_connections} connections to upstream {self._name} are busy; try "
                "later or raise its max_connections"
            ) from error
        except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
            raise UpstreamTimeoutError(
                f"upstream {self._name} was silent for {limits.timeout_s:g} s; ask for fewer or "
                "shorter candidates, or raise its timeout_s",
                retriable=limits.is_patient,
            ) from error
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise UnreachableError(
                f"upstream {self._name} cannot be reached ({type(error).__name__}); try later", retriable=True
            ) from error

    async def _written(self, body: dict[str, Any]) -> str:
        """The body as JSON; of several large ones one at a time, between which others go on."""
        async with self._writing:
            content = json.dumps(body, allow_nan=False)  # escaped: a lone surrogate has no UTF-8
            if len(content) > _LARGE_CHARACTERS:
                await asyncio.sleep(0)
            return content


def replica_of(response: httpx.Response) -> str:
    """The replica that a router named; of several that it tried the last, which answered."""
    return str(response.headers.get(REPLICA_HEADER, "")).rpartition(",")[2].strip()
