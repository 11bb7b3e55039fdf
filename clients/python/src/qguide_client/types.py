"""Types of requests and answers; those of chat completions are in `qguide_client.chat_types`.

A field that a newer server adds to an answer is ignored. An option that is left out gets the
server's default.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from qguide_client.answer import Answer
from qguide_client.answers import (
    CalledFunction,
    CalledTool,
    CustomToolCall,
    Decision,
    JudgedAttempt,
    Message,
    ModelCard,
    ModelList,
    Outcome,
    RankedDocument,
    Ranking,
    Readiness,
    RerankUsage,
    Score,
    ScoreBatch,
    ScoredCandidate,
    ScoredItem,
    Scores,
    ScoreTimings,
    ScoreUsage,
    Timings,
    ToolCall,
    Usage,
    Verdicts,
)
from qguide_client.options import ActOptions, AttemptsOptions, BatchOptions, OutcomeOptions, RerankOptions, ScoreOptions

Messages = Sequence[Mapping[str, Any]]
"""A history in OpenAI's shape; its last turn is not the assistant's."""

Candidate = str | Mapping[str, Any]
"""A possible next action: a text, or an assistant's message (with `tool_calls`).

For a Q model whose `read_at` is "observation" the message also has the `observation`: what trying
the action answered, as a text or as the tools' results in messages.
"""

AnyToolCall = ToolCall | CustomToolCall
"""A tool call; its `type` is "custom" for a custom tool."""


class ScoreItem(TypedDict):
    """One item of a batch: a history and the candidates to score after it.

    Attributes:
        counts: how often each candidate was drawn, for its prior.
        logprobs: log-likelihood of each candidate by its policy; in place of `counts`.
        tools: what the candidates may call, in OpenAI's shape.
        greedy: index of the candidate that the policy gave at temperature 0.
    """

    messages: Messages
    candidates: Sequence[Candidate]
    counts: NotRequired[Sequence[int]]
    logprobs: NotRequired[Sequence[float]]
    tools: NotRequired[Sequence[Mapping[str, Any]]]
    greedy: NotRequired[int]


class CallOptions(TypedDict, total=False):
    """Options of every call that computes something.

    Attributes:
        deadline_s: seconds, retries included, after which the answer is of no use; the server
            stops its work then and may have a shorter limit of its own.
    """

    deadline_s: float


__all__ = [
    "ActOptions",
    "Answer",
    "AnyToolCall",
    "AttemptsOptions",
    "BatchOptions",
    "CallOptions",
    "CalledFunction",
    "CalledTool",
    "Candidate",
    "CustomToolCall",
    "Decision",
    "JudgedAttempt",
    "Message",
    "Messages",
    "ModelCard",
    "ModelList",
    "Outcome",
    "OutcomeOptions",
    "RankedDocument",
    "Ranking",
    "Readiness",
    "RerankOptions",
    "RerankUsage",
    "Score",
    "ScoreBatch",
    "ScoreItem",
    "ScoreOptions",
    "ScoreTimings",
    "ScoreUsage",
    "ScoredCandidate",
    "ScoredItem",
    "Scores",
    "Timings",
    "ToolCall",
    "Usage",
    "Verdicts",
]
