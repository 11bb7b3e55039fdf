"""Bodies of our own dialect's answers, and of errors."""

from typing import Literal, Self

from pydantic import Field

from qnet.decision.selection import Reason
from qnet.usage import JudgeUsage
from server.messages.schemas import Body, ChatMessage, JudgeFlag, is_none


class JudgeCalls(Body):
    """Requests to a judge and their tokens, as its upstream counts them."""

    calls: int = Field(description="requests that the upstream answered")
    cached_calls: int = Field(description="requests that an earlier answer made unnecessary")
    prompt_tokens: int
    completion_tokens: int

    @classmethod
    def of(cls, usage: JudgeUsage | None) -> Self | None:
        """Convert from `qnet`'s usage."""
        if usage is None:
            return None
        return cls(
            calls=usage.calls,
            cached_calls=usage.cached_calls,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
        )


class ScoreUsage(Body):
    """Tokens that the scorer computed or found in its cache."""

    scored_tokens: int
    cached_tokens: int
    judge: JudgeCalls | None = Field(
        default=None,
        description="requests to the judge that gave the Q-values, whose tokens are included in "
        "the others; absent for a trained Q model",
        exclude_if=is_none,
    )


class Usage(ScoreUsage):
    """Token usage of one step: drawing and scoring."""

    prompt_tokens: int
    completion_tokens: int
    paraphrase_tokens: int = Field(description="generated for paraphrases; 0 if they were cached")
    cached_prompt_tokens: int = Field(
        description="tokens of the prompt that an upstream had cached"
    )


class ScoreTimings(Body):
    """Milliseconds per stage, including waits."""

    score: float
    total: float


class Timings(ScoreTimings):
    """Milliseconds per stage of one step, including waits."""

    sample: float
    paraphrase: float


class DrawnMessage(ChatMessage):
    """A drawn candidate, the assistant's turn; its content is never in parts."""

    content: str | None = Field(default=None, description="null beside tool calls")


class ScoredCandidate(Body):
    """A candidate and its Q."""

    message: DrawnMessage
    q_value: float | None = Field(description="null if it was not scored; see `reason`")


class ActResponse(Body):
    """The chosen action and the candidates it was chosen from."""

    action: str = Field(description="content of the chosen candidate")
    chosen: int = Field(description="index of the chosen candidate")
    reason: Reason
    guided: bool = Field(description="true if a Q model chose among different candidates")
    unguided_reason: str | None = Field(default=None, description="why no Q model has chosen")
    candidates: list[ScoredCandidate]
    draws_saved: int = Field(description="candidates that adaptive M did not need")
    perturbed: int = Field(description="candidates drawn under a paraphrase")
    warnings: list[str] = Field(description="options that could not be applied, and why")
    policy: str
    q_model: str
    q_model_version: str
    judge: JudgeFlag = False
    usage: Usage
    timings_ms: Timings


class Score(Body):
    """Q of the candidate at `index` of the request."""

    index: int
    q_value: float


class ScoredItem(Body):
    """Q of every candidate of one history, in the request's order."""

    scores: list[Score]
    chosen: int
    reason: Reason
    usage: ScoreUsage


class ScoreResponse(ScoredItem):
    """Q of every candidate, the version that scored, and the timings."""

    q_model: str
    q_model_version: str
    judge: JudgeFlag = False
    timings_ms: ScoreTimings


class ScoreBatchResponse(Body):
    """One answer per item, in the request's order."""

    items: list[ScoredItem]
    q_model: str
    q_model_version: str
    judge: JudgeFlag = False
    timings_ms: ScoreTimings = Field(description="`score` is that of the slowest item")


class OutcomeResponse(Body):
    """A closed episode."""

    episode_id: str
    reward: float
    steps: int = Field(description="number of distinct states that were guided")
    recorded: bool = Field(description="true if it was written to a file for the offline jobs")
    reason: str | None = Field(description="why it was not recorded")


class Health(Body):
    """Health of the server."""

    status: Literal["ok", "unavailable"]
    reason: str | None = None
    details: dict[str, str] = Field(
        default_factory=dict,
        description="`redis`: ok, or down while the server falls back to memory; absent without "
        "Redis. `upstream NAME`: ok, or its problem",
    )


class Version(Body):
    """Version of the server."""

    version: str


class ErrorDetail(Body):
    """Error for programs (`code`) and for people (`message`)."""

    code: str
    message: str
    request_id: str


class ErrorBody(Body):
    """Body of every error response."""

    error: ErrorDetail
