"""Running attempts of one task, of which only the best by value go on.

An attempt is an episode. Its value is the Q of its latest action, read after what the action was answered where the Q
model can read answers; the rule `validity` before a Q model comes first. The rule of going on is that of
`qguide.training.choosing.choosers`, with a budget beside it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Final, Literal

from pydantic import Field

from qguide.qnet.errors import InvalidRequestError
from qguide.qnet.types import History, ScoreResult
from qguide.qnet.work import all_of
from qguide.server.episodes.state import ServedEpisode
from qguide.server.guidance.score_step import ScoringService
from qguide.server.own_bodies.answers import ScoredBy, ScoreUsage
from qguide.server.own_bodies.history import TriedCandidates
from qguide.server.own_bodies.schemas import (
    EPISODE_ID_PATTERN,
    MAX_EPISODE_ID_CHARACTERS,
    NOT_EMPTY,
    WHOLE,
    Body,
    CandidateMessage,
    ChatMessage,
    ChoiceOptions,
    LeastRead,
    ListOf,
    LongHistoryToScore,
    OutOfDomain,
    Positive,
    QModelName,
)
from qguide.server.q_models.threaded import QModelLease

Verdict = Literal["best", "behind", "budget", "ended"]
_RANKS: Final = "attempts are compared by values of different states, but {} ranks the candidates of one step; {}"


class Attempt(Body):
    """One attempt, as it is now."""

    episode_id: str = Field(min_length=1, max_length=MAX_EPISODE_ID_CHARACTERS, pattern=EPISODE_ID_PATTERN)
    messages: ListOf[ChatMessage] | None = Field(
        default=None,
        description="its history with its latest action, and what that was answered if it is known; null compares the "
        "Q of its episode's latest step",
    )
    tokens: Annotated[int, Field(ge=0, le=2**53), WHOLE] | None = Field(
        default=None, description="its cost so far; null counts its episode's steps"
    )
    running: bool = Field(default=True, description="false if it has ended or was stopped: only its tokens count then")


class AttemptsRequest(Body):
    """All attempts of a task, those that have ended included."""

    attempts: ListOf[Attempt] = Field(json_schema_extra=NOT_EMPTY)
    go_on: Positive | None = Field(
        default=None, description="most attempts that go on; null is half of those that run, rounded up"
    )
    budget_tokens: Positive | None = Field(
        default=None, description="of all attempts together: only as many go on as the rest pays one more turn"
    )
    q_model: QModelName = None
    out_of_domain: OutOfDomain = None
    least_read: LeastRead = None
    long_history: LongHistoryToScore = None


class JudgedAttempt(Body):
    """An attempt's value, and the verdict."""

    episode_id: str
    value: float | None = Field(description="null if it was not compared, or no Q is known")
    valid: bool = Field(
        description="false if the rule `validity`, where it stands before the Q model, finds that the latest action "
        "failed: such attempts come after all others"
    )
    tokens: int
    verdict: Verdict = Field(
        description="`best` goes on; `behind` is worth less than those; `budget`: the rest does not pay its next turn; "
        "`ended` was not running"
    )


class AttemptsResponse(Body, ScoredBy):
    """Attempts that go on, and the reason for each that does not."""

    go_on: list[str] = Field(description="episode ids, the best first")
    attempts: list[JudgedAttempt]
    spent_tokens: int
    left_tokens: int | None = Field(description="of the budget; null without one")
    warnings: list[str] = Field(description="reasons for values that are not known")
    usage: ScoreUsage


@dataclass(frozen=True, slots=True)
class _Known:
    """An attempt with what the server knows of it."""

    asked: Attempt
    episode: ServedEpisode | None

    @property
    def running(self) -> bool:
        return self.asked.running and (self.episode is None or self.episode.outcome is None)

    @property
    def tokens(self) -> int:
        if self.asked.tokens is not None:
            return self.asked.tokens
        known = self.episode
        return 0 if known is None else known.prompt_tokens + known.completion_tokens

    @property
    def turn_tokens(self) -> float:
        """Mean tokens of its turns, which is what another one is expected to cost."""
        turns = self.episode.steps if self.episode else 0
        if self.asked.messages is not None:
            turns = sum(message.role == "assistant" for message in self.asked.messages)
        return self.tokens / max(turns, 1)


async def narrow_attempts(body: AttemptsRequest, scoring: ScoringService) -> AttemptsResponse:
    """Value each running attempt, and tell which go on."""
    ids = [attempt.episode_id for attempt in body.attempts]
    most = scoring.settings.max_score_items
    if not 1 <= len(ids) <= most or len(set(ids)) < len(ids):
        raise InvalidRequestError(
            f"attempts has {len(ids)} entries of {len(set(ids))} episodes; send 1 to {most} different ones "
            "(QGUIDE_MAX_SCORE_ITEMS)"
        )
    known = [_Known(one, await scoring.episodes.find(one.episode_id)) for one in body.attempts]
    running = [index for index, one in enumerate(known) if one.running]
    # All by one Q model, even where a split alias gives their episodes different ones.
    with await scoring.hold(body.q_model, ids[0]) as held:
        if held.model.ranks:
            raise InvalidRequestError(_RANKS.format(held.id, held.model.comparable))
        valued = await all_of(
            [_valued(known[index], index, held, scoring, body) for index in running], at_once=scoring.settings.max_batch
        )
    spent = sum(one.tokens for one in known)
    left = None if body.budget_tokens is None else max(body.budget_tokens - spent, 0)
    values = {index: value for index, (value, _, _) in zip(running, valued, strict=True)}
    invalid = {i for i, (_, scored, _) in zip(running, valued, strict=True) if scored and 0.0 in chain(*scored.rules)}
    turns = {index: known[index].turn_tokens for index in running}
    verdicts = narrowed(values, turns, most=body.go_on or -(-len(running) // 2), left=left, invalid=invalid)
    scores = [scored for _, scored, _ in valued if scored is not None]
    asked = [scored.upstream for scored in scores if scored.upstream]
    scoring.metrics.count_attempts(held.id, list(verdicts.values()))
    return AttemptsResponse(
        go_on=[ids[index] for index, verdict in verdicts.items() if verdict == "best"],
        attempts=[
            JudgedAttempt(
                episode_id=ids[index],
                value=values.get(index),
                valid=index not in invalid,
                tokens=one.tokens,
                verdict=verdicts.get(index, "ended"),
            )
            for index, one in enumerate(known)
        ],
        spent_tokens=spent,
        left_tokens=left,
        warnings=[f"attempts[{i}]: {w}" for i, (_, _, w) in zip(running, valued, strict=True) if w],
        **held.model.named,
        usage=ScoreUsage.of(
            computed=sum(scored.computed_tokens for scored in scores),
            cached=sum(scored.cached_tokens for scored in scores),
            upstream=sum(asked[1:], asked[0]) if asked else None,
        ),
    )


def narrowed(
    values: Mapping[int, float | None],
    turn_tokens: Mapping[int, float],
    *,
    most: int,
    left: float | None,
    invalid: Collection[int] = (),
) -> dict[int, Verdict]:
    """The verdict on each running attempt, the best first. Pure.

    Those without a value come last, invalid ones before them, and equal ones in their order.

    Args:
        turn_tokens: what another turn of each costs.
        left: tokens that all of them may still cost; None is no limit.
    """
    worth = {i: (value is not None, i not in invalid, value or 0.0) for i, value in values.items()}
    order = sorted(values, key=worth.__getitem__, reverse=True)
    verdicts: dict[int, Verdict] = {}
    for place, index in enumerate(order):
        if place >= most:
            verdicts[index] = "behind"
        elif left is not None and (left <= 0 or turn_tokens[index] > left):
            verdicts[index] = "budget"
        else:
            verdicts[index] = "best"
            left = None if left is None else left - turn_tokens[index]
    return verdicts


async def _valued(
    one: _Known, index: int, held: QModelLease, scoring: ScoringService, body: AttemptsRequest
) -> tuple[float | None, ScoreResult | None, str]:
    """The value, how it was scored if it was now, and why there is none."""
    if one.asked.messages is None:
        mark = one.episode.last if one.episode else None
        if mark is None:
            raise InvalidRequestError(
                f"attempts[{index}] has no messages, and its episode has no step; send its history"
            )
        if mark.q_model != held.id or mark.q_value is None:
            return None, None, f"its latest step has no Q by {held.id}; send its messages"
        return mark.q_value, None, ""
    try:
        # One action of each is scored, so nothing but Q counts.
        options = ChoiceOptions(out_of_domain=body.out_of_domain, least_read=body.least_read)
        history, action = _latest(one.asked.messages, held, scoring)
        scored = await scoring.score(
            history, action, held, long_history=scoring.long_history(body.long_history), selection=options
        )
    except InvalidRequestError as error:
        raise type(error)(f"attempts[{index}]: {error}") from error
    outside = scored.unguided_reason or ""
    return None if outside else scored.result.q_values[0], scored.result, outside


def _latest(
    messages: Sequence[ChatMessage], held: QModelLease, scoring: ScoringService
) -> tuple[History, TriedCandidates]:
    actions = [at for at, message in enumerate(messages) if message.role == "assistant"]
    if not actions:
        raise InvalidRequestError("messages has no action; send them up to the latest one at least")
    last, manifest = actions[-1], held.model.manifest
    answered = list(messages[last + 1 :])
    reads = manifest is not None and manifest.may_read_observation
    tried = CandidateMessage(**dict(messages[last]), observation=answered if answered and reads else None)
    return scoring.history(messages[:last]), scoring.candidates([tried])
