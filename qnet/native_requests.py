"""Requests and answers in the dialect in which a caller or an upstream wrote them.

Where a caller's dialect is its upstream's, the request goes on as it came and the answer comes back
as it was: what chat completions have no words for, such as signed thoughts, is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

DialectName = Literal["chat", "messages", "responses", "gemini"]
BETAS: Final = "anthropic-beta"
"""Header of the betas of Anthropic's API that a request asks for."""


@dataclass(frozen=True, slots=True)
class NativeRequest:
    """A caller's request as it came.

    Attributes:
        history: the messages that the body was read as; for any other history it does not stand.
        betas: of Anthropic's API that the caller asks for.
    """

    dialect: DialectName
    body: Mapping[str, Any]
    history: tuple[object, ...]
    betas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NativeAnswer:
    """An upstream's answer as it came."""

    dialect: DialectName
    body: Mapping[str, Any]
