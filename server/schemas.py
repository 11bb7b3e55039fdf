"""The bodies of requests and responses: where untrusted data enters."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from qnet.selection import Reason
from qnet.types import Message, Role

Temperature = Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)]


class _Body(BaseModel):
    # Strict: `true` is no number of candidates. NaN and infinity are no temperatures.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ChatMessage(_Body):
    """One turn, OpenAI's shape."""

    role: Role
    content: str

    def to_message(self) -> Message:
        """The same turn as `qnet` knows it."""
        return Message(self.role, self.content)


class ActRequest(_Body):
    """What the agent has seen so far, and how to draw and score what it might do next."""

    messages: list[ChatMessage] = Field(description="the history; the last turn is not the agent's")
    num_candidates: int = Field(default=5, description="M, how many candidates to draw")
    temperature: Temperature = 0.7
    greedy_candidate: bool = Field(
        default=True, description="draw the first candidate at temperature 0"
    )
    max_tokens: int = Field(default=128, ge=1, le=4096, description="of each candidate")
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    policy: str | None = Field(default=None, description="null takes the one that is served")
    q_model: str | None = Field(default=None, description="null takes the default")


class ScoreRequestBody(_Body):
    """What the agent has seen so far, and the caller's own candidates."""

    messages: list[ChatMessage]
    candidates: list[str | ChatMessage] = Field(
        description="what the agent might say next: texts or assistant messages, all different"
    )
    q_model: str | None = None


class ScoreUsage(_Body):
    """Tokens that the scorer computed, and that it found in its cache."""

    scored_tokens: int
    cached_tokens: int


class Usage(ScoreUsage):
    """Also the tokens of the history as the policy reads it, and those it generated."""

    prompt_tokens: int
    completion_tokens: int


class ScoreTimings(_Body):
    """Milliseconds per stage, waiting included."""

    score: float
    total: float


class Timings(ScoreTimings):
    """Also the time it took to draw the candidates."""

    sample: float


class ScoredCandidate(_Body):
    """A candidate and its Q."""

    message: ChatMessage
    q_value: float


class ActResponse(_Body):
    """The chosen action and everything that it was chosen from."""

    action: str = Field(description="the chosen reply's content")
    chosen: int = Field(description="its index among the candidates")
    reason: Reason
    candidates: list[ScoredCandidate]
    policy: str
    q_model: str
    usage: Usage
    timings_ms: Timings


class Score(_Body):
    """Q of the candidate at `index` of the request."""

    index: int
    q_value: float


class ScoreResponse(_Body):
    """Q of every candidate, in the request's order."""

    scores: list[Score]
    chosen: int
    reason: Reason
    q_model: str
    usage: ScoreUsage
    timings_ms: ScoreTimings


class ModelCard(_Body):
    """A model that is served, and what its checkpoint says of it."""

    id: str = Field(description="what a request calls it by")
    object: Literal["model"] = "model"
    kind: Literal["policy", "q_model"]
    source: Literal["embedded", "scripted", "checkpoint", "vllm"]
    default: bool
    context: int | None = Field(description="most tokens; null for a fake")
    checkpoint: str | None = Field(description="the name in its manifest")
    environment: str | None = Field(description="what it was trained on")
    target: str | None = Field(description="what its Q was regressed on: q, avg or reward")
    metrics: dict[str, float] = Field(description="what its training measured")


class ModelList(_Body):
    """All models that are served."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(_Body):
    """Whether the server works."""

    status: Literal["ok", "unavailable"]
    reason: str | None = None


class ErrorDetail(_Body):
    """What went wrong, for a program (`code`) and for a person (`message`)."""

    code: str
    message: str
    request_id: str


class ErrorBody(_Body):
    """The body of every error."""

    error: ErrorDetail
