"""A client for QGuide servers; it needs httpx and pydantic, and neither torch nor the server.

>>> from qguide_client import QGuide
>>> with QGuide("http://127.0.0.1:8000") as client:
...     decision = client.act([{"role": "user", "content": "You see a fridge. Your task is …"}])

Every error class can be imported from here; `qguide_client.errors` shows them as a tree. Types of
requests and answers are in `qguide_client.types` and `qguide_client.chat_types`.
"""

from qguide_client.client import AsyncQGuide, QGuide
from qguide_client.conversation import Retry
from qguide_client.episode import AsyncAttempts, AsyncEpisode, Attempts, Episode
from qguide_client.errors import (
    BodyTooLargeError,
    ConflictError,
    DeadlineExceededError,
    DrainingError,
    EpisodeClosedError,
    EpisodeError,
    ForbiddenError,
    HistoryTooLongError,
    InvalidCandidatesError,
    InvalidRequestError,
    MalformedBodyError,
    MalformedHistoryError,
    NoAnswerError,
    NotFoundError,
    OverLimitError,
    OverloadedError,
    QGuideError,
    RateLimitedError,
    RefusedError,
    RenderingError,
    ScorerUnavailableError,
    ServerFailedError,
    TimedOutError,
    TokensUsedUpError,
    TooManyAtOnceError,
    UnauthorizedError,
    UnavailableError,
    UnknownEpisodeError,
    UnknownModelError,
    UnreachableError,
    UnreadableAnswerError,
    UpstreamFailedError,
    UpstreamRefusedError,
)
from qguide_client.types import Decision, ModelList, Outcome, Ranking, Readiness, ScoreBatch, Scores, Verdicts
from qguide_client.version import VERSION

__all__ = [
    "VERSION",
    "AsyncAttempts",
    "AsyncEpisode",
    "AsyncQGuide",
    "Attempts",
    "BodyTooLargeError",
    "ConflictError",
    "DeadlineExceededError",
    "Decision",
    "DrainingError",
    "Episode",
    "EpisodeClosedError",
    "EpisodeError",
    "ForbiddenError",
    "HistoryTooLongError",
    "InvalidCandidatesError",
    "InvalidRequestError",
    "MalformedBodyError",
    "MalformedHistoryError",
    "ModelList",
    "NoAnswerError",
    "NotFoundError",
    "Outcome",
    "OverLimitError",
    "OverloadedError",
    "QGuide",
    "QGuideError",
    "Ranking",
    "RateLimitedError",
    "Readiness",
    "RefusedError",
    "RenderingError",
    "Retry",
    "ScoreBatch",
    "ScorerUnavailableError",
    "Scores",
    "ServerFailedError",
    "TimedOutError",
    "TokensUsedUpError",
    "TooManyAtOnceError",
    "UnauthorizedError",
    "UnavailableError",
    "UnknownEpisodeError",
    "UnknownModelError",
    "UnreachableError",
    "UnreadableAnswerError",
    "UpstreamFailedError",
    "UpstreamRefusedError",
    "Verdicts",
]
