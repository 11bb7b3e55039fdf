"""Requests and the types of their answers, as values; nothing here touches the network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from qguide_client.chat_types import ChatChunk, ChatCompletion, ChatOptions
from qguide_client.errors import UnreadableAnswerError
from qguide_client.types import (
    ActOptions,
    AttemptsOptions,
    BatchOptions,
    Candidate,
    Decision,
    Messages,
    ModelList,
    Outcome,
    OutcomeOptions,
    Ranking,
    Readiness,
    RerankOptions,
    ScoreBatch,
    ScoreItem,
    ScoreOptions,
    Scores,
    Verdicts,
)

CHAT: Final = "/v1/chat/completions"

T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request.

    Attributes:
        answer: type of the answer.
        body: the JSON body; None sends no body.
        repeatable: true if sending it twice has no further effect, so that it may be sent again
            after a broken connection, when it is unknown how far the request came.
        answering: statuses other than 2xx that carry an answer, not an error.
        deadline_s: seconds after which the answer is of no use; None leaves the limit to the
            client's `timeout_s`.
    """

    method: str
    path: str
    answer: type[T]
    body: Mapping[str, Any] | None = None
    repeatable: bool = True
    answering: frozenset[int] = field(default=frozenset())
    deadline_s: float | None = None

    def read(self, content: bytes, *, request_id: str = "") -> T:
        """Read the answer.

        Raises:
            UnreadableAnswerError: the content is not such an answer.
        """
        try:
            return self.answer.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "the body"
            raise UnreadableAnswerError(
                f"the answer to {self.method} {self.path} is not QGuide's or has an incompatible "
                f"version ({place}: {first['msg']}); check base_url and the server's version",
                request_id=request_id,
            ) from None


def act(messages: Messages, options: ActOptions) -> Call[Decision]:
    """POST /v1/act."""
    return _post("/v1/act", Decision, {"messages": messages, **options})


def score(messages: Messages, candidates: Sequence[Candidate], options: ScoreOptions) -> Call[Scores]:
    """POST /v1/score."""
    body = {"messages": messages, "candidates": candidates, **options}
    return _post("/v1/score", Scores, body)


def score_batch(items: Sequence[ScoreItem], options: BatchOptions) -> Call[ScoreBatch]:
    """POST /v1/score/batch."""
    return _post("/v1/score/batch", ScoreBatch, {"items": items, **options})


def rerank(query: str | Messages, documents: Sequence[str], options: RerankOptions) -> Call[Ranking]:
    """POST /v1/rerank."""
    body: dict[str, Any] = {"documents": documents, **options}
    body["query" if isinstance(query, str) else "messages"] = query
    if "q_model" in body:
        body["model"] = body.pop("q_model")
    return _post("/v1/rerank", Ranking, body)


def outcome(episode_id: str, reward: float, options: OutcomeOptions) -> Call[Outcome]:
    """POST /v1/episodes/{id}/outcome; not repeatable, because a second outcome is refused."""
    path = f"/v1/episodes/{quote(episode_id, safe='')}/outcome"
    return Call("POST", path, Outcome, {"reward": reward, **options}, repeatable=False)


def attempts(given: Sequence[Mapping[str, Any]], options: AttemptsOptions) -> Call[Verdicts]:
    """POST /v1/attempts."""
    return _post("/v1/attempts", Verdicts, {"attempts": given, **options})


def chat(messages: Messages, options: ChatOptions) -> Call[ChatCompletion]:
    """POST /v1/chat/completions."""
    return _post(CHAT, ChatCompletion, _chat_body(messages, options))


def chat_stream(messages: Messages, options: ChatOptions) -> Call[ChatChunk]:
    """POST /v1/chat/completions as a stream; each event is a chunk."""
    body = _chat_body(messages, options)
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    return _post(CHAT, ChatChunk, body)


def _chat_body(messages: Messages, options: ChatOptions) -> dict[str, Any]:
    body: dict[str, Any] = {**options, "messages": messages}
    return {**body.pop("extra_body", {}), **body}


def _post(path: str, answer: type[T], body: Mapping[str, Any]) -> Call[T]:
    """A POST call; `deadline_s` is taken out of the body."""
    sent = {**body}
    return Call("POST", path, answer, sent, deadline_s=sent.pop("deadline_s", None))


def models() -> Call[ModelList]:
    """GET /v1/models."""
    return Call("GET", "/v1/models", ModelList)


def ready() -> Call[Readiness]:
    """GET /readyz."""
    return Call("GET", "/readyz", Readiness, answering=frozenset({503}))
