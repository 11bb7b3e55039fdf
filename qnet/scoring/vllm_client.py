"""A vLLM pooling server: token ids in, hidden states or logits at each last token out.

Hidden states travel as base64 of little-endian float32. Every failure, and every answer that is
not what was asked for, is a ScorerUnavailableError that does not name the server's address; an
UnscorableError where the server found the fault with its input.
"""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict, TypeVar, Unpack

import httpx
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from qguide.qnet.body_limits import ACCEPT_ENCODING, AnswerTooLargeError, UnknownEncodingError, read_bounded_sync
from qguide.qnet.errors import ScorerUnavailableError, UnscorableError

Answer = TypeVar("Answer", bound=BaseModel)

DEFAULT_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 5.0
_MAX_ANSWER_BYTES = 64 * 1024**2
_SHOWN_CHARACTERS = 200
_INPUT_REFUSED = (400, 413, 422)
_COUNTER = re.compile(r"^vllm:prefix_cache_(queries|hits)(?:_total)?(?:\{.*\})? (\S+)$", re.M)


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """Counters of vLLM's prefix cache since it started, for all of its clients."""

    queried_tokens: int
    hit_tokens: int

    def hits_of(self, tokens: int, *, since: "CacheCounters") -> int:
        """Number of cached ones among `tokens` sent since then, at least.

        Exact if no other client used the server; otherwise all their lookups are taken for hits.
        """
        queried = self.queried_tokens - since.queried_tokens
        hits = self.hit_tokens - since.hit_tokens
        return max(0, min(tokens, hits - max(0, queried - tokens)))


class _Shape(BaseModel, frozen=True):
    """Shape of an answer; further fields are ignored."""


class _Pooled(_Shape):
    index: int
    data: str


class _Usage(_Shape):
    prompt_tokens: int


class _PoolingAnswer(_Shape):
    data: list[_Pooled]
    usage: _Usage


class _ModelCard(_Shape):
    id: str
    max_model_len: int | None = None


class _ModelList(_Shape):
    data: list[_ModelCard]


class _Error(_Shape):
    message: str


class _ErrorAnswer(_Shape):
    error: _Error


class _Classified(_Shape):
    index: int
    probs: list[float]


class _ClassifyAnswer(_Shape):
    data: list[_Classified]
    usage: _Usage


class _Connection(TypedDict):
    model: str
    api_key: NotRequired[str | None]
    timeout_s: NotRequired[float]


class PoolingServer:
    """The client of one served model. Synchronous, for one thread.

    Args:
        url: the server's root, with or without /v1; the operator's, never a caller's.
    """

    def __init__(
        self, url: str, *, model: str, api_key: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.model = model
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Accept-Encoding": ACCEPT_ENCODING} | ({"Authorization": f"Bearer {api_key}"} if api_key else {}),
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S)),
        )
        self._timeout_s = timeout_s

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def served_contexts(self) -> dict[str, int | None]:
        """The most tokens that each served model takes, None where the server does not say."""
        answer = self._read(_ModelList, self._ask("GET", "/v1/models"))
        return {card.id: card.max_model_len for card in answer.data}

    def cache_counters(self) -> CacheCounters | None:
        """The prefix cache's counters; None where the server does not publish them."""
        found = {"queries": 0.0, "hits": 0.0}
        lines = _COUNTER.findall(self._ask("GET", "/metrics").text)
        if {name for name, _ in lines} != set(found):
            return None
        try:
            for name, value in lines:  # one line for each engine
                found[name] += float(value)
            return CacheCounters(int(found["queries"]), int(found["hits"]))
        except (ValueError, OverflowError) as error:
            raise self._failure("counts its cache in no numbers") from error

    def _ask(self, method: str, path: str, *, json: object = None) -> httpx.Response:
        """The server's answer with status 200.

        Requests change nothing on the server, so one whose connection was lost is sent once more.
        After a timeout it is not: a slow server would only get more to do.
        """
        try:
            try:
                response = self._ask_once(method, path, json)
            except (httpx.NetworkError, httpx.RemoteProtocolError):
                response = self._ask_once(method, path, json)
        except (AnswerTooLargeError, UnknownEncodingError) as error:
            raise self._failure(str(error)) from error
        except httpx.TimeoutException as error:
            raise self._failure(f"gave no answer within {self._timeout_s:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._failure(f"cannot be reached ({type(error).__name__})") from error
        if response.status_code != 200:
            refused = response.status_code in _INPUT_REFUSED
            kind = UnscorableError if refused else ScorerUnavailableError
            raise self._failure(f"answered {path} with {_reason(response)}", kind)
        return response

    def _ask_once(self, method: str, path: str, json: object) -> httpx.Response:
        with self._http.stream(method, path, json=json) as response:
            return read_bounded_sync(response, max_bytes=_MAX_ANSWER_BYTES)

    def _read(self, shape: type[Answer], response: httpx.Response) -> Answer:
        try:
            return shape.model_validate_json(response.content)
        except ValidationError as error:
            path, faults = response.request.url.path, error.error_count()
            raise self._failure(f"answered {path} in another shape ({faults} faults)") from error

    def _failure(
        self, what: str, kind: type[ScorerUnavailableError] = ScorerUnavailableError
    ) -> ScorerUnavailableError:
        return kind(f"the vLLM server of {self.model} {what}")

    def _require_whole(self, answer: _PoolingAnswer | _ClassifyAnswer, sent: Sequence[list[int]], what: str) -> None:
        """Refuse the answer of a server that truncated a sequence, or has not one item for each."""
        counted, tokens = answer.usage.prompt_tokens, sum(map(len, sent))
        if counted != tokens:
            raise self._failure(f"read {counted:,} tokens where {tokens:,} were sent")
        if sorted(item.index for item in answer.data) != list(range(len(sent))):
            raise self._failure(f"gave {len(answer.data)} {what} for {len(sent)} sequences")


class VllmServer(PoolingServer):
    """The client of one served trunk."""

    def __init__(self, url: str, *, hidden_size: int, **others: Unpack[_Connection]) -> None:
        super().__init__(url, **others)
        self._hidden_size = hidden_size

    def hidden_states(self, sequences: Sequence[list[int]], *, cache_salt: str = "") -> NDArray[np.float32]:
        """The hidden state at each sequence's last token, float32 (sequences, D).

        Values may be infinite or NaN: an overflow in one sequence must not fail the others.
        """
        body = {
            "model": self.model,
            "input": list(sequences),
            "use_activation": False,  # an embedding model's would scale the state to length 1
            "encoding_format": "base64",
            "embed_dtype": "float32",
            "endianness": "little",
        } | ({"cache_salt": cache_salt} if cache_salt else {})
        answer = self._read(_PoolingAnswer, self._ask("POST", "/pooling", json=body))
        self._require_whole(answer, sequences, "states")
        pooled = sorted(answer.data, key=lambda item: item.index)
        return np.stack([self._vector(item.data) for item in pooled])

    def _vector(self, encoded: str) -> NDArray[np.float32]:
        try:
            raw = base64.b64decode(encoded, validate=True)
            hidden_D = np.frombuffer(raw, dtype="<f4").astype(np.float32)
        except ValueError as error:
            raise self._failure("gave a hidden state that is no base64 of float32") from error
        if len(hidden_D) != self._hidden_size:
            raise self._failure(
                f"gave a hidden state of {len(hidden_D):,} numbers; the value head takes "
                f"{self._hidden_size:,}: start vLLM on this checkpoint's trunk, with LAST pooling"
            )
        return hidden_D


class ClassifyServer(PoolingServer):
    """The client of one served classifier with one label."""

    def logits(self, sequences: Sequence[list[int]], *, cache_salt: str = "") -> list[float]:
        """The classifier's logit of each sequence; NaN is possible, as in `hidden_states`."""
        # The default is a sigmoid for most models with one label.
        return self._classify(sequences, cache_salt, use_activation=False)

    def activations(self, sequences: Sequence[list[int]]) -> list[float]:
        """The logits as the server changes them unless it is told not to: sigmoids, mostly."""
        return self._classify(sequences, "", use_activation=True)

    def _classify(self, sequences: Sequence[list[int]], cache_salt: str, *, use_activation: bool) -> list[float]:
        body = {"model": self.model, "input": list(sequences), "use_activation": use_activation} | (
            {"cache_salt": cache_salt} if cache_salt else {}
        )
        answer = self._read(_ClassifyAnswer, self._ask("POST", "/classify", json=body))
        self._require_whole(answer, sequences, "values")
        found = sorted(answer.data, key=lambda item: item.index)
        return [self._only(item.probs) for item in found]

    def _only(self, values: Sequence[float]) -> float:
        if len(values) != 1:
            raise self._failure(
                f"gave {len(values)} values for a sequence, one for each of its labels; a Q model "
                "has one label: serve a classifier with num_labels = 1"
            )
        return values[0]


def _reason(response: httpx.Response) -> str:
    try:
        message = _ErrorAnswer.model_validate_json(response.content).error.message
    except ValidationError:
        return str(response.status_code)
    return f"{response.status_code}: {message[:_SHOWN_CHARACTERS]}"
