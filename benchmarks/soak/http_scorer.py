"""Scorer that calls a running QGuide server."""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from qguide.qnet.errors import ScorerUnavailableError
from qguide.qnet.sliced_scorer import CacheUse
from qguide.qnet.types import ScoreRequest, ScoreResult

_TIMEOUT_S = 120.0
_SHOWN_CHARACTERS = 300
_METRIC = re.compile(r"^qguide_cache_(bytes|evictions_total)\{.*\} (\S+)$", re.M)


class _Error(BaseModel):
    model_config = ConfigDict(frozen=True)

    code: str
    message: str


class _ErrorAnswer(BaseModel):
    model_config = ConfigDict(frozen=True)

    error: _Error


class HttpScorer:
    """Scorer over `/v1/score` of a QGuide server, with one connection per request of a call.

    Args:
        url: root URL of the server.
        connections: maximum concurrent requests.
    """

    def __init__(self, url: str, *, connections: int) -> None:
        self._http = httpx.Client(base_url=url.rstrip("/"), timeout=_TIMEOUT_S)
        self._threads = ThreadPoolExecutor(connections)

    def close(self) -> None:
        """Close the connections."""
        self._threads.shutdown()
        self._http.close()

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Score each candidate; the requests are sent concurrently.

        Raises:
            ScorerUnavailableError: the server does not answer, or refuses with a reason.
        """
        return list(self._threads.map(self._score, requests))

    @property
    def cache(self) -> CacheUse:
        """Size of the largest cache among the server's Q models, and all evictions.

        Raises:
            ScorerUnavailableError: the server does not answer.
        """
        lines = _METRIC.findall(self._ask("GET", "/metrics").text)
        kept = [int(float(value)) for name, value in lines if name == "bytes"]
        evicted = [int(float(value)) for name, value in lines if name != "bytes"]
        return CacheUse(max(kept, default=0), sum(evicted))

    def _score(self, request: ScoreRequest) -> ScoreResult:
        body: dict[str, Any] = {
            "messages": [{"role": m.role, "content": m.content} for m in request.history],
            "candidates": [m.content for m in request.candidates],
        }
        answer = self._ask("POST", "/v1/score", json=body).json()
        return ScoreResult(
            tuple(float(score["q_value"]) for score in answer["scores"]),
            computed_tokens=answer["usage"]["scored_tokens"],
            cached_tokens=answer["usage"]["cached_tokens"],
        )

    def _ask(self, method: str, path: str, **content: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **content)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ScorerUnavailableError(
                f"the server cannot be reached ({type(error).__name__}); start it or check --url"
            ) from error
        if response.status_code != 200:
            raise ScorerUnavailableError(f"the server answered {path} with {_reason(response)}")
        return response


def _reason(response: httpx.Response) -> str:
    """Status and, from a QGuide server, its error message, as one short line."""
    try:
        error = _ErrorAnswer.model_validate_json(response.content).error
    except ValidationError:
        return str(response.status_code)
    text = f"{error.code}: {error.message}"[:_SHOWN_CHARACTERS]
    line = "".join(character if character.isprintable() else " " for character in text)
    return f"{response.status_code} {line}"
