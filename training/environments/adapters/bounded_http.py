"""Requests to a server of environments, each bounded in time and size.

httpx limits the wait for each part of an answer, so a server that sends a byte now and then never
reaches the limit, and an answer without end fills the memory. Here the limits hold for the whole
answer.
"""

import asyncio
from typing import Any, Final

import httpx

from qguide.qnet.body_limits import (
    ACCEPT_ENCODING,
    AnswerTooLargeError,
    UnknownEncodingError,
    check_number_of_values,
    read_bounded,
)
from qguide.qnet.errors import EnvironmentFailureError

MOST_BYTES: Final = 16 * 1024**2
"""Of one answer of a server."""

MOST_VALUES: Final = 1_000_000
"""Of the JSON of one answer."""


class BoundedHttp:
    """One server, asked by one episode. Its event loop runs as long as a request does.

    Args:
        timeout_s: for each request, from connecting to the last byte of the answer.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self.url = url
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None
        self._runner = asyncio.Runner()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The whole answer."""
        try:
            return self._runner.run(self._request(method, path, **options))
        except TimeoutError as error:
            raise EnvironmentFailureError(
                f"{self.url}{path} has not answered to the end after {self._timeout_s:g} s; see "
                "what the server does, or raise timeout_s"
            ) from error
        except (AnswerTooLargeError, UnknownEncodingError, httpx.DecodingError) as error:
            raise EnvironmentFailureError(f"{self.url}{path} {error}; correct the server") from error

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._runner.run(self._client.aclose())
        self._runner.close()

    async def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        if self._client is None:
            headers = {"accept-encoding": ACCEPT_ENCODING}
            self._client = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=None)
        async with asyncio.timeout(self._timeout_s), self._client.stream(method, path, **options) as response:
            answer = await read_bounded(response, max_bytes=MOST_BYTES)
        check_number_of_values(answer.content, MOST_VALUES)
        return answer
