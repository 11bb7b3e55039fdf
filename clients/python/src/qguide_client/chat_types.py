"""Types of chat completions: OpenAI's shape, with QGuide's guidance under `qguide`."""

from collections.abc import Mapping, Sequence
from typing import Any

from qguide_client.answers import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatGuidance,
    ChatMessage,
    ChatUsage,
    ParaphraseUsage,
    SampleUsage,
    StageUsage,
)
from qguide_client.options import ChatParameters, GuidanceOptions


class ChatOptions(ChatParameters, total=False):
    """Parameters of a chat completion, those included that only an upstream reads.

    Attributes:
        extra_body: further parameters; the policy gets those that callers may set.
    """

    stop: str | Sequence[str]
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    extra_body: Mapping[str, Any]


__all__ = [
    "ChatChoice",
    "ChatChunk",
    "ChatChunkChoice",
    "ChatCompletion",
    "ChatGuidance",
    "ChatMessage",
    "ChatOptions",
    "ChatUsage",
    "GuidanceOptions",
    "ParaphraseUsage",
    "SampleUsage",
    "StageUsage",
]
