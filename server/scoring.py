"""Scoring as every route does it: each different candidate once."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from qnet.deadline import Deadline
from qnet.selection import Reason, distinct, select
from qnet.types import History, Message, ScoreRequest
from server.episodes.service import Episodes
from server.q_models import Held
from server.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Scored:
    """What a Q model says of the candidates of one history.

    Attributes:
        q_values: one per candidate, repeated ones included.
        score_ms: waiting included.
    """

    q_values: tuple[float, ...]
    chosen: int
    reason: Reason
    computed_tokens: int
    cached_tokens: int
    score_ms: float


async def score_once(
    history: History,
    candidates: Sequence[Message],
    q_model: Held,
    telemetry: Telemetry,
    deadline: Deadline,
) -> Scored:
    """Q of each candidate; equal ones go through the Q model once.

    Raises:
        HistoryTooLongError: history and candidate exceed the trunk's context.
        ScorerUnavailableError: no answer can be given, or not in time.
    """
    unique = distinct(candidates)
    asked = perf_counter()
    async with deadline.kept():
        result = await q_model.scorer.score(ScoreRequest(history, unique.messages))
    score_s = perf_counter() - asked
    telemetry.candidates.observe(len(unique.messages))
    q_values = tuple(result.q_values[i] for i in unique.index)
    selection = select(candidates, q_values)
    return Scored(
        q_values=q_values,
        chosen=selection.chosen,
        reason=selection.reason,
        computed_tokens=result.computed_tokens,
        cached_tokens=result.cached_tokens,
        score_ms=score_s * 1e3,
    )


async def remember(
    episodes: Episodes,
    episode_id: str | None,
    history: History,
    candidates: Sequence[Message],
    scored: Scored,
    q_model: Held,
) -> None:
    """Let a step with the caller's own candidates count as one of its episode.

    Raises:
        EpisodeClosedError: the episode has ended meanwhile.
    """
    texts = [candidate.text for candidate in candidates]
    await episodes.end_step(
        episode_id,
        history,
        q_values=dict(zip(texts, scored.q_values, strict=True)),
        chosen=texts[scored.chosen],
        q_model=q_model.id,
    )
