"""Request and response bodies of QGuide's own endpoints."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from qguide.qnet.chat_messages import (
    PART_END,
    CustomCall,
    CustomTool,
    Function,
    FunctionCall,
    calls_of,
    part_text,
    plain_message,
)
from qguide.qnet.decision.decision import Fallback
from qguide.qnet.decision.history_window import LongHistory
from qguide.qnet.decision.selection import PriorBy, SelectionName
from qguide.qnet.errors import MalformedHistoryError
from qguide.qnet.turns import rested
from qguide.qnet.types import Message, Role

NOT_EMPTY: Final[dict[str, Any]] = {"minItems": 1}
"""For the OpenAPI document only: an empty list is answered with a 400 that names the remedy."""
AT_LEAST_ONE: Final[dict[str, Any]] = {"minimum": 1}
"""Likewise for a number whose upper limit is a setting."""


def _whole_number(value: object) -> object:
    """Accept 3.0 as an integer, as JSON schema does."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


T = TypeVar("T")
ListOf = Annotated[list[Annotated[T, BeforeValidator(rested)]], Field(fail_fast=True)]
"""A list of a body: validation stops at the first part that does not fit, and rests in between."""
WHOLE: Final = BeforeValidator(_whole_number)
"""Must follow a field's limits; placed before, it would hide them in the OpenAPI document."""
Integer = Annotated[int, WHOLE]
Positive = Annotated[int, Field(ge=1), WHOLE]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1), WHOLE]
Temperature = Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)]
QModelName = Annotated[str | None, Field(description="a name, `name@version` or alias; null takes the default")]
EPISODE_ID_PATTERN: Final = r"^[^\x00-\x1f\x7f]+$"
"""No control characters, because the id becomes a part of the outcome's URL."""
MAX_EPISODE_ID_CHARACTERS: Final = 256
EpisodeId = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=MAX_EPISODE_ID_CHARACTERS,
        pattern=EPISODE_ID_PATTERN,
        description="identifies the episode that this step belongs to; with a split alias all its steps use the same Q "
        "model",
    ),
]

Earned = Annotated[
    float | None,
    Field(
        allow_inf_nan=False,
        description="the outcome of the episode if it had ended before this step: a total, and not what the last "
        "action added; null where that is unknown",
    ),
]
EpisodeArm = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=MAX_EPISODE_ID_CHARACTERS,
        pattern=EPISODE_ID_PATTERN,
        description="with a split alias, selects the Q model of this episode; no step is added to the episode",
    ),
]


OutOfDomain = Annotated[
    Literal["unguided", "guide"] | None,
    Field(
        description="answer to a state of another kind than the Q model was trained on: `unguided` takes the likeliest "
        "candidate, `guide` that of the Q model; null takes the server's setting"
    ),
]

LeastRead = Annotated[
    float | None,
    Field(
        ge=0,
        le=1,
        description="share of a long history's tokens that a window has to read; less is out of the Q model's domain, "
        "see `out_of_domain`; null takes the server's setting",
    ),
]

LongHistoryToScore = Annotated[
    Literal["error", "window"] | None,
    Field(
        description="answer if the history is longer than the Q model takes: `error`, or `window` to score after the "
        "task and the newest turns that fit; null takes the server's setting"
    ),
]

Selection = Annotated[
    SelectionName | None,
    Field(
        description="`argmax` chooses the highest Q, `posterior` the highest Q / tau + log prior; null takes the "
        "server's setting, else `posterior` if `tau` is given or the Q model's manifest has a fitted one"
    ),
]
Tau = Annotated[
    float | None,
    Field(
        ge=0,
        allow_inf_nan=False,
        description="temperature of Q in the posterior: at 0 Q alone counts, and the larger it is, the more the prior "
        "does; null takes the server's setting, else the Q model's fitted one",
    ),
]

JudgeFlag = Annotated[
    bool,
    Field(
        description="true if a judge gave the Q-values: a prompted chat model, not a trained Q model; the version of a "
        "judge begins with `judge-`"
    ),
]


def is_none(value: object) -> bool:
    """True for None: such a field is left out of an answer."""
    return value is None


class Body(BaseModel, frozen=True, extra="forbid", strict=True):
    """Base of bodies that refuse unknown fields; strict, so that `true` is not accepted as a number."""


class Whole(BaseModel, frozen=True, extra="allow", strict=True):
    """Base of bodies whose unknown fields are kept and passed on."""


class ContentPart(Whole):
    """A part of a message's content; only text can be read."""

    type: str
    text: str | None = None


class CalledFunction(Function, Whole):
    """Name and arguments of a called function."""

    arguments: str = Field(description="JSON, as the model wrote it")


class ToolCallBody(FunctionCall, Whole):
    """One tool call of an assistant message."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class CalledTool(CustomTool, Whole):
    """Name and input of a called custom tool."""

    input: str = Field(description="any text")


class CustomCallBody(CustomCall, Whole):
    """One call of a custom tool in an assistant message."""

    id: str
    type: Literal["custom"]
    custom: CalledTool


_UNREAD: Final = frozenset({"annotations", "reasoning", "reasoning_content", "reasoning_details"})
_NULL_IN_TEXT: Final = ("audio", "function_call", "refusal")
"""Fields of a reply in OpenAI's SDK that are null where it is text or calls alone."""


class ChatMessage(Body):
    """One message in OpenAI's format."""

    role: Role
    content: str | ListOf[ContentPart] | None = Field(
        default=None, description="text, or parts of type text; null beside tool calls"
    )
    tool_calls: ListOf[ToolCallBody | CustomCallBody] | None = Field(default=None, exclude_if=is_none)
    tool_call_id: str | None = Field(default=None, exclude_if=is_none)

    @model_validator(mode="before")
    @classmethod
    def _as_it_came(cls, given: object) -> object:
        """Leave out what a reply has beside its text and nobody reads, and what is null; a refusal is text."""
        if not isinstance(given, Mapping) or given.keys() <= cls.model_fields.keys():
            return given
        kept = {name: value for name, value in given.items() if name not in _UNREAD}
        if isinstance(kept.get("refusal"), str) and not kept.get("content"):
            kept["content"] = kept.pop("refusal")
        return {name: value for name, value in kept.items() if value is not None or name not in _NULL_IN_TEXT}

    @classmethod
    def of(cls, message: Message) -> Self:
        """Convert from `qnet`'s message."""
        return cls.model_validate(plain_message(message))

    def to_message(self) -> Message:
        """Convert to `qnet`'s message."""
        calls = calls_of(self.tool_calls)
        return Message(self.role, text_in(self.role, self.content), calls, self.tool_call_id or "")


def text_in(role: str, content: str | Sequence[ContentPart] | None) -> str:
    """The text of a message's content."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        said = part_text({"type": part.type, "text": part.text, **(part.model_extra or {})})
        if said is None:
            raise MalformedHistoryError(
                f"the {role} message has a content part of type {part.type[:40]!r}; Q models read only text, so send "
                "parts of type 'text' with their text"
            )
        texts.append(said)
    return PART_END.join(texts)


class PolicyShare(Body):
    """A policy, and how many of a step's candidates it draws."""

    name: str = Field(min_length=1)
    n: Positive | None = Field(
        default=None,
        description="null for all policies lets a server that learns split num_candidates by the outcomes of earlier "
        "episodes",
    )


def _shares(given: object) -> object:
    """The shares that a header names as `large=2,small=3`, or `large,small`."""
    if not isinstance(given, str):
        return given
    pairs = (part.partition("=") for part in given.split(","))
    return [{"name": name.strip()} | ({"n": n.strip()} if sign else {}) for name, sign, n in pairs]


class ChoiceOptions(Body):
    """Options of the choice among candidates, drawn or the caller's own."""

    q_model: QModelName = None
    selection: Selection = None
    tau: Tau = None
    out_of_domain: OutOfDomain = None
    least_read: LeastRead = None


class StepOptions(ChoiceOptions):
    """Guidance options of one step."""

    policies: Annotated[ListOf[PolicyShare], BeforeValidator(_shares)] | None = Field(
        default=None,
        description="several policies that draw the step's candidates, n each, in place of one; one that fails costs "
        "its own candidates only; in a header `large=2,small=3`, or without n `large,small`",
    )
    fallback: Fallback | None = Field(
        default=None,
        description="answer if no Q is available: `error`, or `first` for the likeliest candidate: the one drawn most "
        "often, of equal ones the first; null takes the server's setting",
    )
    long_history: LongHistory | None = Field(
        default=None,
        description="answer if the history is longer than the Q model takes: `error`, `first` for the likeliest "
        "candidate, or `window` to score after the task and the newest turns that fit; null takes the server's setting",
    )
    prior: PriorBy | None = Field(
        default=None,
        description="the prior: `votes`, smoothed shares of the draws, or the policy's own `likelihood`, or "
        "`likelihood-per-token`; votes where a candidate has no logprob; null takes the server's setting, else what "
        "the Q model was fitted with",
    )
    episode_id: EpisodeId = None
    earned: Earned = None
    adaptive: bool | None = Field(
        default=None,
        description="draw in small batches until a candidate's Q exceeds the previous step's, at most num_candidates; "
        "needs an episode or previous_q; null takes the server's setting for steps of an episode",
    )
    previous_q: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="for adaptive: Q of the previous action; null takes it from the episode",
    )
    until_decided: bool = Field(
        default=False,
        description="draw in small batches, at most num_candidates, and stop once no further draw can change the "
        "choice",
    )
    max_wait_s: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="answer after this time with the best of the candidates that have come, at least one, or earlier "
        "if none of the others could change the choice; null waits for all",
    )
    perturb: bool = Field(default=False, description="draw all candidates but the first from paraphrases of the task")
    task: str | None = Field(
        default=None, description="for perturb: the part of the first user message to paraphrase; null detects it"
    )


class ActRequest(StepOptions):
    """The agent's history, and how to draw and score its next action."""

    messages: ListOf[ChatMessage] = Field(
        description="the history; its last message is the observation to answer", json_schema_extra=NOT_EMPTY
    )
    num_candidates: Integer = Field(
        default=5, description="M, how many candidates to draw", json_schema_extra=AT_LEAST_ONE
    )
    temperature: Temperature | None = Field(
        default=0.7, description="null is the policy's default, which reasoning models need"
    )
    greedy_candidate: bool = Field(
        default=True, description="draw the first candidate at temperature 0, unless temperature is null"
    )
    max_tokens: Annotated[int, Field(ge=1, le=4096), WHOLE] | None = Field(
        default=128, description="of each candidate; null is the policy's default"
    )
    seed: Annotated[int, Field(ge=0, le=2**63 - 1), WHOLE] | None = None
    policy: str | None = Field(default=None, description="null takes the default")


class CandidateMessage(ChatMessage):
    """A possible next action, and what trying it answered."""

    observation: str | ListOf[ChatMessage] | None = Field(
        default=None,
        description="what the environment answered: a text, or the tools' results as messages; needed by a Q model "
        "whose `read_at` is `observation`, read by one without a network, refused by any other",
        exclude_if=is_none,
    )


class ScoreItem(Body):
    """An agent's history and the caller's own candidates."""

    messages: ListOf[ChatMessage] = Field(json_schema_extra=NOT_EMPTY)
    candidates: ListOf[str | CandidateMessage] = Field(
        description="possible next actions: texts or assistant messages, all different", json_schema_extra=NOT_EMPTY
    )
    counts: ListOf[Annotated[int, Field(ge=0), WHOLE]] | None = Field(
        default=None, description="how often each candidate was drawn, for its prior"
    )
    logprobs: ListOf[Annotated[float, Field(allow_inf_nan=False)]] | None = Field(
        default=None, description="log-likelihood of each candidate by its policy; in place of `counts`"
    )
    tools: ListOf[dict[str, Any]] | None = Field(
        default=None, description="what the candidates may call, in OpenAI's shape; only the rule `validity` reads it"
    )
    greedy: Annotated[int, Field(ge=0), WHOLE] | None = Field(
        default=None,
        description="index of the candidate that the policy gave at temperature 0; beside `counts` or `logprobs` it "
        "counts as much as the Q model's fit found right",
    )


class ScoringOptions(ChoiceOptions):
    """Options of scoring the caller's own candidates."""

    long_history: LongHistoryToScore = None


class ScoreRequestBody(ScoringOptions, ScoreItem):
    """One history with candidates, and the Q model to score them."""

    episode_id: EpisodeId = None
    earned: Earned = None


class ScoreBatchBody(ScoringOptions):
    """Several histories with candidates, of one agent or several, and one Q model."""

    items: ListOf[ScoreItem] = Field(json_schema_extra=NOT_EMPTY)
    episode_id: EpisodeArm = None
