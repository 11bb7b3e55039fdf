"""The bodies of requests and responses: where untrusted data enters."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from qnet.decision.decide import Fallback
from qnet.decision.selection import Reason
from qnet.errors import MalformedHistoryError
from qnet.policies.openai_schema import PART_END
from qnet.types import Message, Role, ToolCall

OUR_SHAPE: Final = "(ours)"
VLLM_SHAPE: Final = "(vLLM's)"
SHAPES: Final = (OUR_SHAPE, VLLM_SHAPE)
"""Tags of the bodies that `POST /v1/score` takes; no field of a body, so errors leave them out."""

NOT_EMPTY: Final[dict[str, Any]] = {"minItems": 1}
"""For the document alone: an empty list is a 400 whose message says what to give."""
AT_LEAST_ONE: Final[dict[str, Any]] = {"minimum": 1}
"""Likewise for a number, whose upper limit is the operator's."""


def _whole_number(value: object) -> object:
    """JSON knows one kind of number: 3.0 is an integer, and its schema says so."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE: Final = BeforeValidator(_whole_number)
"""Stands after a field's limits: before them it would keep them out of the document."""
Integer = Annotated[int, WHOLE]
Positive = Annotated[int, Field(ge=1), WHOLE]
Temperature = Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)]
QModelName = Annotated[
    str | None, Field(description="a name, `name@version` or alias; null takes the default")
]
_ID_PATTERN: Final = r"^[^\x00-\x1f\x7f]+$"
"""No control characters: the id becomes a part of an address when the episode ends."""
EpisodeId = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=256,
        pattern=_ID_PATTERN,
        description="ties the steps of one episode together, and to one Q model where the "
        "operator split them",
    ),
]

EpisodeArm = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=256,
        pattern=_ID_PATTERN,
        description="takes the Q model that this episode has, where the operator split them; "
        "nothing becomes a step of it",
    ),
]


def _is_none(value: object) -> bool:
    return value is None


class Body(BaseModel):
    """What is not known here is refused."""

    # Strict: `true` is no number of candidates. NaN and infinity are no temperatures.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ContentPart(BaseModel):
    """A piece of a turn's content; only text can be read."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    type: str
    text: str | None = None


class CalledFunction(Body):
    """What a tool call calls."""

    name: str
    arguments: str = Field(description="JSON, as the model wrote it")


class ToolCallBody(Body):
    """One tool call of an assistant's turn."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class CalledTool(Body):
    """What a custom tool is given."""

    name: str
    input: str = Field(description="any text")


class CustomCallBody(Body):
    """One call of a custom tool of an assistant's turn."""

    id: str
    type: Literal["custom"]
    custom: CalledTool


class ChatMessage(Body):
    """One turn, OpenAI's shape."""

    role: Role
    content: str | list[ContentPart] | None = Field(
        default=None, description="text, or parts of type text; null beside tool calls"
    )
    tool_calls: list[ToolCallBody | CustomCallBody] | None = Field(
        default=None, exclude_if=_is_none
    )
    tool_call_id: str | None = Field(default=None, exclude_if=_is_none)

    @classmethod
    def of(cls, message: Message) -> Self:
        """A turn as `qnet` knows it."""
        calls = [_call_body(call) for call in message.tool_calls]
        content = message.content or None if calls else message.content
        return cls(role=message.role, content=content, tool_calls=calls or None)

    def to_message(self) -> Message:
        """The same turn as `qnet` knows it.

        Raises:
            MalformedHistoryError: the content has a part that is no text.
        """
        calls = tuple(_call_of(body) for body in self.tool_calls or ())
        return Message(self.role, text_in(self.role, self.content), calls, self.tool_call_id or "")


def text_in(role: str, content: str | Sequence[ContentPart] | None) -> str:
    """What a turn says.

    Raises:
        MalformedHistoryError: the content has a part that is no text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type != "text" or part.text is None:
            raise MalformedHistoryError(
                f"the {role}'s content has a part of type {part.type[:40]!r}; the Q models read "
                "text alone, so send parts of type 'text' with their text"
            )
    return PART_END.join(part.text or "" for part in content)


def _call_body(call: ToolCall) -> ToolCallBody | CustomCallBody:
    if call.kind == "custom":
        custom = CalledTool(name=call.name, input=call.arguments)
        return CustomCallBody(id=call.id, type="custom", custom=custom)
    return ToolCallBody(
        id=call.id, function=CalledFunction(name=call.name, arguments=call.arguments)
    )


def _call_of(body: ToolCallBody | CustomCallBody) -> ToolCall:
    if isinstance(body, CustomCallBody):
        return ToolCall(body.custom.name, body.custom.input, body.id, "custom")
    return ToolCall(body.function.name, body.function.arguments, body.id)


class StepOptions(Body):
    """How a step may be guided."""

    q_model: QModelName = None
    fallback: Fallback | None = Field(
        default=None,
        description="if no Q can be given: `error`, or `first` for the first candidate; null "
        "takes the server's setting",
    )
    episode_id: EpisodeId = None
    adaptive: bool = Field(
        default=False,
        description="draw in small batches until Q rises over the previous step's, at most "
        "num_candidates; needs episode_id or previous_q",
    )
    previous_q: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="for adaptive: Q of the action that led here; null takes the episode's",
    )
    perturb: bool = Field(
        default=False,
        description="draw the candidates after the first under paraphrases of the task",
    )
    task: str | None = Field(
        default=None,
        description="for perturb: the part of the first user message that says what to do; null "
        "finds it",
    )


class ActRequest(StepOptions):
    """What the agent has seen so far, and how to draw and score what it might do next."""

    messages: list[ChatMessage] = Field(
        description="the history; the last turn is not the agent's", json_schema_extra=NOT_EMPTY
    )
    num_candidates: Integer = Field(
        default=5, description="M, how many candidates to draw", json_schema_extra=AT_LEAST_ONE
    )
    temperature: Temperature | None = Field(
        default=0.7, description="null leaves it to the policy, which reasoning models need"
    )
    greedy_candidate: bool = Field(
        default=True,
        description="draw the first candidate at temperature 0, unless temperature is null",
    )
    max_tokens: Annotated[int, Field(ge=1, le=4096), WHOLE] | None = Field(
        default=128, description="of each candidate; null leaves it to the policy"
    )
    seed: Annotated[int, Field(ge=0, le=2**63 - 1), WHOLE] | None = None
    policy: str | None = Field(default=None, description="null takes the default")


class CandidateMessage(ChatMessage):
    """A possible next action, and what trying it answered."""

    observation: str | list[ChatMessage] | None = Field(
        default=None,
        description="what the environment answered: a text, or the tools' results as messages; "
        "needed by a Q model whose `read_at` is `observation`, refused by any other",
        exclude_if=_is_none,
    )


class ScoreItem(Body):
    """What an agent has seen so far, and the caller's own candidates."""

    messages: list[ChatMessage] = Field(json_schema_extra=NOT_EMPTY)
    candidates: list[str | CandidateMessage] = Field(
        description="possible next actions: texts or assistant messages, all different",
        json_schema_extra=NOT_EMPTY,
    )


class ScoreRequestBody(ScoreItem):
    """One history, and which Q model scores."""

    q_model: QModelName = None
    episode_id: EpisodeId = None


class ScoreBatchBody(Body):
    """Several histories, of the same agent or of others, for one Q model."""

    items: list[ScoreItem] = Field(json_schema_extra=NOT_EMPTY)
    q_model: QModelName = None
    episode_id: EpisodeArm = None


class ScoreUsage(Body):
    """Tokens that the scorer computed, and that it found in its cache."""

    scored_tokens: int
    cached_tokens: int


class Usage(ScoreUsage):
    """Also the tokens of the history as the policy reads it, and those it generated."""

    prompt_tokens: int
    completion_tokens: int
    paraphrase_tokens: int = Field(description="generated for paraphrases; 0 if they were cached")
    cached_prompt_tokens: int = Field(
        description="tokens of the prompt that an upstream had cached"
    )


class ScoreTimings(Body):
    """Milliseconds per stage, waiting included."""

    score: float
    total: float


class Timings(ScoreTimings):
    """Also the time it took to draw the candidates."""

    sample: float
    paraphrase: float


class DrawnMessage(ChatMessage):
    """A drawn candidate, the assistant's turn; its content is never in parts."""

    content: str | None = Field(default=None, description="null beside tool calls")


class ScoredCandidate(Body):
    """A candidate and its Q."""

    message: DrawnMessage
    q_value: float | None = Field(description="null if none was read; see `reason`")


class ActResponse(Body):
    """The chosen action and everything that it was chosen from."""

    action: str = Field(description="the chosen reply's content")
    chosen: int = Field(description="its index among the candidates")
    reason: Reason
    guided: bool = Field(description="false if there was a choice but no Q could be given")
    unguided_reason: str | None = Field(default=None, description="why there is no guidance")
    candidates: list[ScoredCandidate]
    draws_saved: int = Field(description="candidates that adaptive M did not need")
    perturbed: int = Field(description="candidates drawn under a paraphrase")
    warnings: list[str] = Field(description="what was asked for but could not be done")
    policy: str
    q_model: str
    q_model_version: str
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
    """Also which version scored, and how long it took."""

    q_model: str
    q_model_version: str
    timings_ms: ScoreTimings


class ScoreBatchResponse(Body):
    """One answer per item, in the request's order."""

    items: list[ScoredItem]
    q_model: str
    q_model_version: str
    timings_ms: ScoreTimings = Field(description="`score` is that of the slowest item")


class OutcomeRequest(Body):
    """How an episode ended."""

    reward: float = Field(allow_inf_nan=False)
    terminated: bool = Field(
        default=True, description="false if a limit of steps cut the episode off"
    )
    action: str | None = Field(
        default=None, min_length=1, description="the last one, if it was not the chosen one"
    )
    observation: str = Field(default="", description="the observation after the last action")


class OutcomeResponse(Body):
    """An episode that has its outcome."""

    episode_id: str
    reward: float
    steps: int = Field(description="distinct states in which it was guided")
    recorded: bool = Field(description="true if it was written for the offline jobs")
    reason: str | None = Field(description="why it was not written")


class Health(Body):
    """Whether the server works."""

    status: Literal["ok", "unavailable"]
    reason: str | None = None
    details: dict[str, str] = Field(
        default_factory=dict,
        description="`redis`: ok, or gone while memory serves in its place; absent without Redis. "
        "`upstream NAME`: ok, or what is wrong with it",
    )


class ErrorDetail(Body):
    """What went wrong, for a program (`code`) and for a person (`message`)."""

    code: str
    message: str
    request_id: str


class ErrorBody(Body):
    """The body of every error."""

    error: ErrorDetail
