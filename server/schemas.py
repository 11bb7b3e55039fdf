"""The bodies of requests and responses: where untrusted data enters."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from qnet.selection import Reason
from qnet.types import Message, Role

Temperature = Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)]
QModelName = Annotated[
    str | None, Field(description="a name, `name@version` or alias; null takes the default")
]
EpisodeId = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=256,
        description="keeps an episode with one Q model where the operator split them",
    ),
]


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
    q_model: QModelName = None
    episode_id: EpisodeId = None


class ScoreRequestBody(_Body):
    """What the agent has seen so far, and the caller's own candidates."""

    messages: list[ChatMessage]
    candidates: list[str | ChatMessage] = Field(
        description="what the agent might say next: texts or assistant messages, all different"
    )
    q_model: QModelName = None
    episode_id: EpisodeId = None


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
    q_model_version: str
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
    q_model_version: str
    usage: ScoreUsage
    timings_ms: ScoreTimings


class ModelCard(_Body):
    """A model that is served, and what its checkpoint says of it."""

    id: str = Field(description="what a request calls it by: a Q model's is `name@version`")
    object: Literal["model"] = "model"
    kind: Literal["policy", "q_model"]
    name: str
    version: str | None = Field(description="null for the policy")
    source: Literal["embedded", "scripted", "checkpoint", "vllm"]
    default: bool = Field(description="a request that names none gets it, or may get it")
    context: int | None = Field(description="most tokens; null for a fake")
    checkpoint: str | None = Field(description="the name in its manifest")
    environment: str | None = Field(description="what it was trained on")
    target: str | None = Field(description="what its Q was regressed on: q, avg or reward")
    metrics: dict[str, float] = Field(description="what its training measured")


class ModelList(_Body):
    """All models that are served, and the names that lead to the Q models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
    aliases: dict[str, str] = Field(description="name -> the one Q model that it leads to")
    splits: dict[str, dict[str, float]] = Field(
        description="name -> Q models, and the share of the episodes of each"
    )
    shadows: dict[str, str] = Field(
        description="Q model's name -> what scores its requests a second time"
    )


class LoadRequest(_Body):
    """A checkpoint to serve next to the others."""

    folder: str = Field(description="plain name of a folder in QGUIDE_MODELS_DIR")
    name: str
    version: str | None = Field(default=None, description="null: the start of its sha256")
    replace: bool = Field(
        default=False,
        description="the name moves to it, and the version that it led to is dropped; otherwise "
        "the name moves only if it is new",
    )


class DropRequest(_Body):
    """A version to serve no more."""

    q_model: str = Field(description="`name@version`; nothing else may lead to it")


class AliasRequest(_Body):
    """Where a name leads from now on."""

    alias: str
    to: str | dict[str, float] = Field(description="a Q model, or several and their shares")


class ShadowRequest(_Body):
    """What scores the requests of a Q model a second time from now on."""

    q_model: str = Field(description="the name, without a version")
    shadow: str | None = Field(description="a name, `name@version` or alias; null ends it")


class Health(_Body):
    """Whether the server works."""

    status: Literal["ok", "unavailable"]
    reason: str | None = None
    details: dict[str, str] = Field(
        default_factory=dict,
        description="`redis`: ok, or gone while memory serves in its place; absent without Redis",
    )


class ErrorDetail(_Body):
    """What went wrong, for a program (`code`) and for a person (`message`)."""

    code: str
    message: str
    request_id: str


class ErrorBody(_Body):
    """The body of every error."""

    error: ErrorDetail
