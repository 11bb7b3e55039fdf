"""The types of the online path: messages, candidates, scores. No torch here."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, Protocol

from qguide.qnet.errors import InvalidCandidatesError
from qguide.qnet.native_requests import NativeAnswer, NativeRequest
from qguide.qnet.work import TokenUsage, UpstreamCalls, total_of

Role = Literal["system", "developer", "user", "assistant", "tool"]
INSTRUCTING: Final = ("system", "developer")
"""Roles that instruct the model, at any position; they do not take part in turn order."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a function or of a custom tool, OpenAI's shapes.

    Two calls are equal where they would do the same: ids are drawn at random and spaces between
    arguments mean nothing, so neither is compared.

    Attributes:
        arguments: as the model wrote them; JSON, unless it failed to. A custom tool's input, which is any text.
        id: what the tool's result answers to.
        kind: of the tool; its name says the same.
        canonical_arguments: the same JSON with sorted keys and single spaces, or the arguments
            as they are where they are no JSON.
    """

    name: str
    arguments: str = field(compare=False)
    id: str = field(default="", compare=False)
    kind: Literal["function", "custom"] = field(default="function", compare=False)
    canonical_arguments: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "canonical_arguments", _canonical(self.arguments))


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of the chat, OpenAI's shape.

    Attributes:
        content: "" where the turn is nothing but tool calls.
        tool_call_id: which call a tool's turn is the result of; not compared, like the id itself.
        wire: the turn as it came over OpenAI's API, if it did; upstreams and callers get it back
            as it was, nothing else reads it.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = field(default="", compare=False)
    wire: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def text(self) -> str:
        """Text of the turn, tool calls as lines `Action: name({"argument": "value"})`."""
        if not self.tool_calls:
            return self.content
        calls = [f"Action: {call.name}({call.canonical_arguments})" for call in self.tool_calls]
        return "\n".join([self.content, *calls] if self.content else calls)

    @property
    def unread(self) -> list[str]:
        """As JSON, the parts of its content that are no text; only an upstream can read those."""
        content = (self.wire or {}).get("content")
        if not isinstance(content, list):
            return []
        return [
            json.dumps({k: v for k, v in part.items() if k != "cache_control"}, sort_keys=True)
            for part in content
            if part.get("type") not in ("text", "refusal") or not isinstance(part.get(part["type"]), str)
        ]

    @property
    def key(self) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        """Everything that a Q model reads and that equality compares; for lasting hashes."""
        calls = tuple((call.name, call.canonical_arguments) for call in self.tool_calls)
        return self.role, self.content, calls


History = tuple[Message, ...]
"""The state s_t: the task instruction, then actions and observations in turn."""


@dataclass(frozen=True, slots=True)
class TaskMarker:
    """A text before the task's description in the first user message of an environment.

    Attributes:
        opening: what stands before it, space around it aside.
        end: what stands after it; a line's end always ends it, too.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}  # read in settings

    opening: str
    end: str = "\n"


DEFAULT_TEMPERATURE: Final = 0.7
"""Of a policy in this process where none is given; the papers draw candidates at it."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling options of a policy.

    Attributes:
        temperature: 0 is greedy. None: the policy's own.
        max_tokens: most completion tokens of one candidate; None: all that the policy can.
        seed: makes the draws repeatable; None draws from fresh entropy.
        first_greedy: the first candidate is drawn at temperature 0, the others as said.
        parameters: other ones of OpenAI's; an upstream gets them as they are, no other policy knows any.
        native: the caller's request, for an upstream of the same dialect.
    """

    temperature: float | None = DEFAULT_TEMPERATURE
    max_tokens: int | None = 128
    seed: int | None = None
    first_greedy: bool = False
    parameters: Mapping[str, object] = field(default_factory=dict, hash=False)
    native: NativeRequest | None = field(default=None, compare=False, repr=False)

    @property
    def first_is_greedy(self) -> bool:
        """True if the first candidate is the policy's greedy reply."""
        return self.first_greedy or self.temperature == 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate for the next turn, and its cost.

    Attributes:
        completion_tokens: tokens generated for it, the end-of-turn token included; 0 for the
            copy of a candidate that could only be drawn once.
        logprob: sum of log pi(token) at temperature 1, or None if unknown.
        prompt_tokens: of the history it was drawn after, the same for all that were drawn with it; 0 if unknown.
        spent: on the first candidate of each request to an upstream, what that request cost; of
            several candidates in one request only the sum of the completion tokens is known.
        extra: whatever else the upstream said of it.
        answer_extra: whatever else the upstream's answer said, the same for all candidates in it.
        native: the upstream's answer, if it is no chat completion.
        policy: name of the one that drew it, where several policies drew; else "".
        left_out: parameters that the upstream refused, and that it was asked without.
        greedy: drawn at temperature 0; None: its place among the others says so.
    """

    message: Message
    completion_tokens: int
    logprob: float | None = None
    finished: bool = True
    prompt_tokens: int = 0
    spent: TokenUsage | None = None
    finish_reason: str | None = None
    logprobs: Mapping[str, object] | None = field(default=None, hash=False)
    extra: Mapping[str, object] = field(default_factory=dict, hash=False, repr=False)
    answer_extra: Mapping[str, object] = field(default_factory=dict, hash=False, repr=False)
    native: NativeAnswer | None = field(default=None, compare=False, repr=False)
    policy: str = ""
    left_out: tuple[str, ...] = ()
    greedy: bool | None = None


def spent_on(candidates: Sequence[Candidate]) -> TokenUsage:
    """Usage of drawing these candidates: as an upstream counts it, else as the policy does."""
    spent = total_of([candidate.spent for candidate in candidates if candidate.spent])
    return replace(
        spent,
        prompt_tokens=spent.prompt_tokens or max((candidate.prompt_tokens for candidate in candidates), default=0),
        completion_tokens=spent.completion_tokens or sum(candidate.completion_tokens for candidate in candidates),
    )


DrawRole = Literal["act", "branch", "rollout", "reflect", "refine", "escalate"]
"""Purpose of a draw: the agent's own next action; candidates to compare with actions that were taken in the same state;
an action of a roll-out, which finds what an earlier one is worth; a reflection on an episode, which is text and no
action; or another candidate where the best Q is below a threshold, by the same policy or by another one."""


ThresholdAction = Literal["refine", "escalate", "stop"]
"""Action where the best Q of a step is below a threshold; see `qguide.qnet.decision.threshold`."""

ActionOutcome = Literal["raised", "still_below", "failed", "stopped"]
"""`raised`: the best Q is no longer below the threshold. `failed`: no candidate could be drawn, or
none could be scored."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One history of a batch to draw `n` candidates for.

    Attributes:
        role: what is drawn; policies that are made of several answer each role by another.
        cache_salt: see `ScoreRequest`.
    """

    history: History
    n: int
    sampling: Sampling = field(default_factory=Sampling)
    role: DrawRole = "act"
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """One history of a batch and the candidates to score after it.

    Attributes:
        cache_salt: only what was cached under the same salt is found for it.
        observations: the environment's answer to each candidate that was tried, for a Q model that
            reads after it; empty for one that reads at the action.
        counts: how often each candidate was drawn; empty if unknown.
        logprobs: log-likelihood of each candidate by the policy that drew it; None or empty if unknown.
        tools: what the candidates may call, in OpenAI's shape; empty if unknown.
    """

    history: History
    candidates: tuple[Message, ...]
    cache_salt: str = ""
    observations: tuple[History, ...] = ()
    counts: tuple[int, ...] = ()
    logprobs: tuple[float | None, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = field(default=(), hash=False, repr=False)

    def require_readable(self, *, name: str, reads_observation: bool) -> None:
        """Refuse no candidates, unread observations, and their absence where they are read."""
        if not self.candidates:
            raise InvalidCandidatesError("there are 0 candidates to score; give at least 1")
        if self.observations and not reads_observation:
            raise InvalidCandidatesError(
                f"candidates bring an observation, but {name} reads Q at the action, before "
                "anything is observed; leave out candidates[].observation, or name a Q model whose "
                "read_at is 'observation'"
            )
        if reads_observation and len(self.observations) != len(self.candidates):
            raise InvalidCandidatesError(
                f"{name} reads Q after the observation (read_at is 'observation'), but the "
                "candidates bring none; give what trying each one answered as "
                "candidates[].observation of /v1/score, or name a Q model that reads at the action"
            )


@dataclass(frozen=True, slots=True)
class HistoryWindow:
    """Part of a history that a Q model read in place of the whole, which is longer than it takes.

    Attributes:
        read_messages: those of the task, and the newest ones.
        left_out_tokens: of the messages that were left out; estimated without a tokenizer.
        read_tokens: of the messages that were read; 0 in an episode's state of before.
    """

    read_messages: int
    left_out_messages: int
    left_out_tokens: int
    read_tokens: int = 0

    @property
    def read_share(self) -> float:
        """Share of the history's tokens that was read."""
        return self.read_tokens / (self.read_tokens + self.left_out_tokens)

    @property
    def warning(self) -> str:
        """The window in words."""
        return (
            f"the Q model read a window of the history: the task and the newest turns, "
            f"{self.read_messages:,} messages; {self.left_out_messages:,} messages "
            f"({self.left_out_tokens:,} tokens) between them were left out"
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict of a judge on a candidate by each of its criteria.

    Attributes:
        criteria: name of each -> the judge's digit, from 0 to 9.
        reason: the judge's, one short line that a model wrote; "" without one.
    """

    criteria: Mapping[str, float] = field(hash=False)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """Q of each candidate of one request, and what reading it cost.

    Attributes:
        q_values: one per candidate, in the request's order.
        computed_tokens: tokens that went through the trunk, or that an upstream read and wrote.
        cached_tokens: tokens whose keys and values were already there; of an upstream's answers,
            those that were not asked for again.
        upstream: requests to the upstream that gave the values; None for a trained Q model.
        window: what was read in place of the whole history; None if that was read.
        rules: values of each candidate that are compared before its Q, the first one first; empty without such rules.
        verdicts: of each candidate; empty without a judge that has criteria.
        distance: of the state from the Q model's domain, 1 being the limit; None if not measured.
    """

    q_values: tuple[float, ...]
    computed_tokens: int
    cached_tokens: int = 0
    upstream: UpstreamCalls | None = None
    window: HistoryWindow | None = None
    rules: tuple[tuple[float, ...], ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    distance: float | None = None


class Policy(Protocol):
    """Draws candidate actions for a history."""

    name: str

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Draw `n` candidates.

        Raises:
            HistoryTooLongError: the history leaves no room for a reply.
        """
        ...


class AsyncScorer(Protocol):
    """A scorer that can be awaited; `qguide.qnet.device.device_thread.ScoringWorker` makes one."""

    name: str

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Q of each candidate of one request.

        Raises:
            HistoryTooLongError: history and candidate exceed the trunk's context.
            ScorerUnavailableError: no answer can be given, or not in time.
        """
        ...


class BatchPolicy(Protocol):
    """Draws for many histories at once: what jobs that play many games use."""

    name: str

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Candidates of each request, in order. Synchronous; owns the device."""
        ...


class Scorer(Protocol):
    """Q-values for the candidates of each request. Synchronous; owns the device.

    Attributes:
        reads_observation: it needs each candidate's observation.
        ranks: its values order the candidates of one request and mean no more.
    """

    name: str
    reads_observation: bool = False
    ranks: bool = False

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q(s, a) of each candidate, in the requests' order.

        Raises:
            HistoryTooLongError: history and candidate exceed the trunk's context.
            InvalidCandidatesError: candidates bring observations to a Q model that reads at the
                action, or none to one that reads after the observation.
        """
        ...


def _canonical(arguments: str) -> str:
    try:
        text = json.dumps(json.loads(arguments), ensure_ascii=False, sort_keys=True)
        text.encode()
    except (ValueError, RecursionError):  # no JSON, half a character, or nested without end
        return arguments
    return text
