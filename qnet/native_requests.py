"""Requests and answers in the dialect in which a caller or an upstream wrote them.

Where a caller's dialect is its upstream's, the request goes on as it came and the answer comes back
as it was: what chat completions have no words for, such as signed thoughts, is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class NativeRequest:
    """A caller's request as it came.

    Attributes:
        history: the messages that the body was read as; for any other history it does not stand.
        headers: of the caller's that go with the body.
    """

    dialect: str
    body: Mapping[str, Any]
    history: tuple[object, ...]
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NativeAnswer:
    """An upstream's answer as it came."""

    dialect: str
    body: Mapping[str, Any]
