"""A client for QGuide servers; it needs httpx and pydantic, and neither torch nor the server.

>>> from qguide_client import QGuide
>>> with QGuide("http://127.0.0.1:8000") as client:
...     decision = client.act([{"role": "user", "content": "You see a fridge. Your task is …"}])

Errors are in `qguide_client.errors`, what is asked and answered in `qguide_client.types`.
"""

from qguide_client.client import AsyncQGuide, QGuide
from qguide_client.conversation import Retry
from qguide_client.episode import AsyncEpisode, Episode
from qguide_client.errors import NoAnswerError, QGuideError, RefusedError, UnreadableAnswerError
from qguide_client.types import (
    Decision,
    ModelList,
    Outcome,
    Ranking,
    Readiness,
    ScoreBatch,
    Scores,
)
from qguide_client.version import VERSION

__all__ = [
    "VERSION",
    "AsyncEpisode",
    "AsyncQGuide",
    "Decision",
    "Episode",
    "ModelList",
    "NoAnswerError",
    "Outcome",
    "QGuide",
    "QGuideError",
    "Ranking",
    "Readiness",
    "RefusedError",
    "Retry",
    "ScoreBatch",
    "Scores",
    "UnreadableAnswerError",
]
