"""Chat completions in OpenAI's shape, and what QGuide adds to them under `qguide`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from pydantic import field_validator

from qguide_client.types import Answer, AnyToolCall, CallOptions, ScoreUsage, Timings


class GuidanceOptions(TypedDict, total=False):
    """How candidates are drawn and scored.

    Attributes:
        num_candidates: M, how many to draw.
        q_model: a name, `name@version` or alias.
        temperature: of the candidates.
        fallback: "first" takes the first candidate where no Q can be given.
        episode_id: ties the steps of an episode together.
        adaptive: draw in small batches, until Q rises over the previous step's; needs an
            `episode_id` or `previous_q`.
        previous_q: Q of the action that led here; the server knows it of an episode.
        perturb: draw the candidates after the first under paraphrases of the task.
        task: what to paraphrase, where the server does not find it in the first message.
        return_candidates: show all candidates in the answer.
    """

    num_candidates: int
    q_model: str
    temperature: float
    fallback: Literal["error", "first"]
    episode_id: str
    adaptive: bool
    previous_q: float
    perturb: bool
    task: str
    return_candidates: bool


class ChatOptions(CallOptions, total=False):
    """OpenAI's parameters, as far as a server need know them.

    Attributes:
        model: the policy.
        n: how many of the best to return.
        extra_body: any others; they are passed on to the policy.
    """

    model: str
    n: int
    temperature: float
    max_tokens: int
    max_completion_tokens: int
    seed: int
    stop: str | Sequence[str]
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    qguide: GuidanceOptions
    extra_body: Mapping[str, Any]


class ChatMessage(Answer):
    """What was said, or which tools are to be called."""

    role: str
    content: str | None = None
    tool_calls: tuple[AnyToolCall, ...] = ()

    @field_validator("tool_calls", mode="before")
    @classmethod
    def _none_are_none(cls, calls: object) -> object:
        return calls or ()


class ChatChoice(Answer):
    """One of the best."""

    index: int
    message: ChatMessage
    finish_reason: str


class ChatUsage(Answer):
    """Tokens of the policy."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ParaphraseUsage(Answer):
    """Tokens that rewording the task took."""

    prompt_tokens: int
    completion_tokens: int


class SampleUsage(ParaphraseUsage):
    """Tokens that drawing took; `cached_tokens` of the prompt were known already."""

    cached_tokens: int


class StageUsage(Answer):
    """Tokens of each stage."""

    paraphrase: ParaphraseUsage
    sample: SampleUsage
    score: ScoreUsage


class ChatGuidance(Answer):
    """Which candidate was chosen, and why.

    Attributes:
        chosen: its index among the candidates.
        returned: the indices of those that the choices are, the best first.
        q_values: of all candidates; None where none could be given.
        unguided_reason: why there is no guidance.
        draws_saved: candidates that `adaptive` did without.
        perturbed: candidates that were drawn under a paraphrase.
        warnings: what was asked for and could not be had.
        candidates: all of them, if they were asked for.
    """

    guided: bool
    unguided_reason: str | None = None
    reason: str | None = None
    chosen: int
    q_values: tuple[float, ...] | None
    q_model: str
    q_model_version: str
    policy: str = ""
    returned: tuple[int, ...] = ()
    num_candidates: int = 0
    distinct_candidates: int = 0
    draws_saved: int = 0
    perturbed: int = 0
    warnings: tuple[str, ...] = ()
    usage: StageUsage | None = None
    timings_ms: Timings | None = None
    episode_id: str | None = None
    candidates: tuple[dict[str, Any], ...] = ()


class ChatCompletion(Answer):
    """The best of M."""

    id: str
    model: str
    choices: tuple[ChatChoice, ...]
    usage: ChatUsage
    qguide: ChatGuidance

    @property
    def content(self) -> str:
        """The text of the best."""
        return self.choices[0].message.content or ""


class ChatChunkChoice(Answer):
    """A piece of one choice; `delta` has what is new."""

    index: int
    delta: dict[str, Any]
    finish_reason: str | None = None


class ChatChunk(Answer):
    """A piece of a completion; the last one with choices has the guidance."""

    id: str
    model: str
    choices: tuple[ChatChunkChoice, ...]
    usage: ChatUsage | None = None
    qguide: ChatGuidance | None = None

    @property
    def content(self) -> str:
        """The new text of the best."""
        return "".join(
            choice.delta.get("content") or "" for choice in self.choices if choice.index == 0
        )
