"""Base classes of answers; `qguide_client.answers` is generated on top of them.

Each adds to its answer a property or a conversion that no schema can express.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, field_validator


class Answer(BaseModel):
    """An answer of the server: immutable, and without the fields that are not known here."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class _CallsFunction(Protocol):
    @property
    def function(self) -> _Named: ...


class _CallsCustomTool(Protocol):
    @property
    def custom(self) -> _Named: ...


class _Scored(Protocol):
    @property
    def q_value(self) -> float: ...


class _HasScores(Protocol):
    @property
    def scores(self) -> Sequence[_Scored]: ...


class _HasStatus(Protocol):
    @property
    def status(self) -> str: ...


class _HasContent(Protocol):
    @property
    def content(self) -> str | None: ...


class _Choice(Protocol):
    @property
    def message(self) -> _HasContent: ...


class _HasChoices(Protocol):
    @property
    def choices(self) -> Sequence[_Choice]: ...


class _ChunkChoice(Protocol):
    @property
    def index(self) -> int: ...
    @property
    def delta(self) -> Mapping[str, Any]: ...


class _HasChunkChoices(Protocol):
    @property
    def choices(self) -> Sequence[_ChunkChoice]: ...


class ToolCallBase(Answer):
    """A call of a function."""

    @property
    def name(self: _CallsFunction) -> str:
        """Name of the function."""
        return self.function.name


class CustomToolCallBase(Answer):
    """A call of a custom tool."""

    @property
    def name(self: _CallsCustomTool) -> str:
        """Name of the tool."""
        return self.custom.name


class ScoredItemBase(Answer):
    """Q of every candidate of one history."""

    @property
    def q_values(self: _HasScores) -> tuple[float, ...]:
        """Q of each candidate, in the request's order."""
        return tuple(score.q_value for score in self.scores)


class ReadinessBase(Answer):
    """A server's readiness, true where it can serve requests."""

    def __bool__(self: _HasStatus) -> bool:
        return self.status != "unavailable"


class ReplyBase(Answer):
    """A reply of the assistant."""

    @field_validator("tool_calls", mode="before", check_fields=False)
    @classmethod
    def _null_is_empty(cls, calls: object) -> object:
        return calls or ()


class CompletionBase(Answer):
    """A chat completion."""

    @property
    def content(self: _HasChoices) -> str:
        """Text of the best candidate."""
        return self.choices[0].message.content or ""


class ChunkBase(Answer):
    """A part of a streamed chat completion."""

    @property
    def content(self: _HasChunkChoices) -> str:
        """New text of the best candidate."""
        return "".join(choice.delta.get("content") or "" for choice in self.choices if choice.index == 0)
