"""Bodies of our own dialect's answers, and of errors."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from qguide.qnet.decision.selection import PriorBy, Reason
from qguide.qnet.decision.threshold import BelowThreshold
from qguide.qnet.types import ActionOutcome, HistoryWindow, ThresholdAction, Verdict
from qguide.qnet.work import UpstreamCalls
from qguide.server.own_bodies.schemas import Body, ChatMessage, JudgeFlag, is_none


class ScoredBy(BaseModel):
    """The Q model whose values an answer has."""

    q_model: str
    q_model_version: str
    judge: JudgeFlag = False


class JudgeCalls(Body):
    """Requests to a judge and their tokens, as its upstream counts them."""

    calls: int = Field(description="requests that the upstream answered")
    cached_calls: int = Field(description="requests that an earlier answer made unnecessary")
    prompt_tokens: int
    completion_tokens: int


class Window(Body):
    """Window of a history that is longer than the Q model takes."""

    read_messages: int = Field(description="messages of the task, and the newest ones")
    read_tokens: int = Field(description="their tokens, counted as `left_out_tokens`")
    left_out_messages: int = Field(description="messages between them")
    left_out_tokens: int = Field(
        description="tokens of the messages that were left out, as the Q model's tokenizer counts them; of a judge an "
        "estimate"
    )

    @classmethod
    def of(cls, window: HistoryWindow | None) -> Self | None:
        """Convert from `qnet`'s window."""
        return None if window is None else cls(**asdict(window))


class StepCost(Body):
    """Cost of a step, or of an action of it, in the currency of the operator's prices.

    Parts that nothing tells are null.
    """

    sample: float | None = Field(
        description="of all candidates, by the upstream's word or the policy's prices, at which those of an escalation "
        "count, too; paraphrases are not in it"
    )
    cached: float | None = Field(description="of it, what upstreams with prices read from caches")
    written: float | None = Field(description="of it, what they wrote to caches")
    score: float | None = Field(description="of the judge; null for a trained Q model")
    total: float = Field(description="of the parts that are known")


class TakenAction(Body):
    """An action that was taken because the best Q was below the operator's threshold."""

    action: ThresholdAction
    outcome: ActionOutcome = Field(
        description="`raised` if the best Q is no longer below the threshold; `failed` if nothing could be drawn or "
        "scored"
    )
    policy: str = Field(description="the policy that drew; empty for `stop`")
    candidates: list[int] = Field(description="indices of the candidates that it drew")
    best_q: float = Field(description="best Q after it")
    prompt_tokens: int
    completion_tokens: int
    cost: StepCost | SkipJsonSchema[None] = Field(
        default=None, description="of drawing and scoring its candidates; present as the step's is", exclude_if=is_none
    )


class ThresholdResult(Body):
    """Actions of a step whose best Q was below the operator's threshold."""

    below: float = Field(description="the threshold")
    best_q: float = Field(description="best Q before any action")
    actions: list[TakenAction]

    @classmethod
    def of(cls, below: BelowThreshold | None, policies: Sequence[str], costs: Sequence[StepCost | None]) -> Self | None:
        """Convert from `qnet`'s actions."""
        if below is None:
            return None
        actions = [
            TakenAction(
                action=taken.action,
                outcome=taken.outcome,
                policy=policy,
                candidates=list(taken.candidates),
                best_q=taken.best_q,
                prompt_tokens=taken.spent.prompt_tokens,
                completion_tokens=taken.spent.completion_tokens,
                cost=cost,
            )
            for taken, policy, cost in zip(below.taken, policies, costs, strict=True)
        ]
        return cls(below=below.below, best_q=below.best_q, actions=actions)


Absent = SkipJsonSchema[None]
"""Type of a field that may be missing but is never null."""
WINDOW_TEXT: Final = "present if the Q model read a window of a history that is longer than it takes (`long_history`)"
DistanceField = Annotated[
    float | None,
    Field(
        description="distance of the state from those that the Q model was trained on, 1 being the limit; absent where "
        "nothing measured it",
        exclude_if=is_none,
    ),
]
WindowField = Annotated[Window | None, Field(description=WINDOW_TEXT, exclude_if=is_none)]


PRIOR_TEXT: Final = (
    "the policy's preference: the smoothed share of the draws with the candidate's effect, or its share of the "
    "likelihood"
)
POSTERIOR_TEXT: Final = "share of the candidate's effect by Q and the prior"


class ScoreUsage(Body):
    """Tokens that the scorer computed or found in its cache."""

    scored_tokens: int
    cached_tokens: int
    judge: JudgeCalls | None = Field(
        default=None,
        description="requests to the judge that gave the Q-values, whose tokens are included in the others; absent for "
        "a trained Q model",
        exclude_if=is_none,
    )

    @classmethod
    def of(cls, *, computed: int, cached: int, upstream: UpstreamCalls | None, **others: int) -> Self:
        """Tokens of a score, and the other fields."""
        calls = None if upstream is None else JudgeCalls(**asdict(upstream))
        return cls(scored_tokens=computed, cached_tokens=cached, judge=calls, **others)


class Usage(ScoreUsage):
    """Token usage of one step: drawing and scoring."""

    prompt_tokens: int
    completion_tokens: int
    threshold_tokens: int = Field(
        default=0,
        description="read and generated by actions below the operator's threshold; included in prompt and completion "
        "tokens",
    )
    paraphrase_tokens: int = Field(description="generated for paraphrases; 0 if they were cached")
    cached_prompt_tokens: int = Field(description="tokens of the prompt that an upstream had cached")


class ScoreTimings(Body):
    """Milliseconds per stage, including waits."""

    score: float
    total: float


class Timings(ScoreTimings):
    """Milliseconds per stage of one step, including waits."""

    sample: float
    paraphrase: float


VERDICTS_TEXT: Final = "digit from 0 to 9 by each of the judge's criteria; absent without criteria"
JUDGE_REASON_TEXT: Final = "the judge's reason for the verdicts, in its words; absent with them"
VerdictsField = Annotated[dict[str, float] | None, Field(description=VERDICTS_TEXT, exclude_if=is_none)]
JudgeReasonField = Annotated[str | None, Field(description=JUDGE_REASON_TEXT, exclude_if=is_none)]


def verdict_fields(verdict: Verdict | None) -> dict[str, Any]:
    """Fields of a candidate that a judge with criteria was asked about; none without one."""
    if verdict is None:
        return {}
    return {"verdicts": dict(verdict.criteria), "judge_reason": verdict.reason}


class DrawnMessage(ChatMessage):
    """A drawn candidate, the assistant's turn; its content is never in parts."""

    content: str | None = Field(default=None, description="null beside tool calls")


class ScoredCandidate(Body):
    """A candidate and its Q."""

    message: DrawnMessage
    q_value: float | None = Field(description="null if it was not scored; see `reason`")
    prior: float = Field(description=PRIOR_TEXT)
    posterior: float | None = Field(description=f"{POSTERIOR_TEXT}; null if it was not the reason")
    policy: str | None = Field(
        default=None, description="that drew it; absent unless several policies drew", exclude_if=is_none
    )
    verdicts: VerdictsField = None
    judge_reason: JudgeReasonField = None


class PolicyUsage(Body):
    """Draws of one of several policies, and their cost."""

    name: str
    candidates: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None = Field(description="null where neither prices nor the upstream tell it")
    error: str | None = Field(description="why it drew none, or no more; null if nothing failed")


class StepAnswer(ScoredBy):
    """The choice of a step, the reason for it, and what it cost; of every dialect's answer."""

    chosen: int = Field(description="index of the chosen candidate")
    reason: Reason
    guided: bool = Field(description="true if a Q model chose among different candidates")
    unguided_reason: str | None = Field(description="why no Q model has chosen")
    domain_distance: DistanceField = None
    prior_by: PriorBy = Field(description="source of the prior")
    tau: float | None = Field(description="temperature of Q in the posterior; null where Q alone chose, or none did")
    draws_saved: int = Field(description="candidates that `adaptive`, `until_decided` or `max_wait_s` did without")
    perturbed: int = Field(description="candidates drawn under a paraphrase")
    warnings: list[str] = Field(description="options that could not be applied, and why")
    window: Window | Absent = Field(default=None, description=WINDOW_TEXT, exclude_if=is_none)
    threshold: ThresholdResult | Absent = Field(
        default=None, description="present if the best Q was below the operator's threshold", exclude_if=is_none
    )
    policy: str
    policies: list[PolicyUsage] | Absent = Field(
        default=None, description="of each policy, where several drew; absent otherwise", exclude_if=is_none
    )
    cost: StepCost | Absent = Field(
        default=None,
        description="present if the operator's prices or the upstream tell something of it",
        exclude_if=is_none,
    )
    timings_ms: Timings


class ActResponse(Body, StepAnswer):
    """The chosen action and the candidates it was chosen from."""

    action: str = Field(description="content of the chosen candidate")
    candidates: list[ScoredCandidate]
    usage: Usage


class Score(Body):
    """Q of the candidate at `index` of the request."""

    index: int
    q_value: float
    prior: float | None = Field(
        default=None, description=f"{PRIOR_TEXT}; absent without `counts` and `logprobs`", exclude_if=is_none
    )
    posterior: float | None = Field(
        default=None, description=f"{POSTERIOR_TEXT}; absent if it was not the reason", exclude_if=is_none
    )
    verdicts: VerdictsField = None
    judge_reason: JudgeReasonField = None


class ScoredItem(Body):
    """Q of every candidate of one history, in the request's order."""

    scores: list[Score]
    chosen: int
    reason: Reason
    tau: float | None = Field(
        default=None,
        description="temperature of Q in the posterior; absent if it was not the reason",
        exclude_if=is_none,
    )
    unguided_reason: str | None = Field(
        default=None,
        description="why `chosen` is the likeliest candidate, or the first, and not that of the highest Q; absent if "
        "it is",
        exclude_if=is_none,
    )
    domain_distance: DistanceField = None
    window: WindowField = None
    usage: ScoreUsage


class ScoreResponse(ScoredItem, ScoredBy):
    """Q of every candidate, the version that scored, and the timings."""

    timings_ms: ScoreTimings


class ScoreBatchResponse(Body, ScoredBy):
    """One answer per item, in the request's order."""

    items: list[ScoredItem]
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
        description="`redis`: ok, or down while the server falls back to memory; absent without Redis. `upstream "
        "NAME`: ok, or its problem",
    )


class Version(Body):
    """Version of the server."""

    version: str


class StoppedStep(Body):
    """Figures of a step that was stopped, because no candidate was good enough."""

    below: float = Field(description="the operator's threshold")
    best_q: float
    q_model: str
    q_model_version: str
    num_candidates: int = Field(description="number of candidates drawn")
    prompt_tokens: int
    completion_tokens: int
    scored_tokens: int


StoppedField = Annotated[
    StoppedStep | None, Field(description="present if the code is `below_threshold`", exclude_if=is_none)
]


class ErrorDetail(Body):
    """Error for programs (`code`) and for people (`message`)."""

    code: str
    message: str
    request_id: str
    qguide: StoppedField = None


class ErrorBody(Body):
    """Body of every error response."""

    error: ErrorDetail
