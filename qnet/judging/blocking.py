"""A judge as the synchronous scorer that jobs use."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from qguide.qnet.judging.judge import CallOutcome, Judge
from qguide.qnet.types import Scorer, ScoreRequest, ScoreResult
from qguide.qnet.usage import TokenUsage, UpstreamCalls
from qguide.qnet.work_context import all_of

_HISTORIES_AT_ONCE: Final = 16


class BlockingJudge(Scorer):
    """Judges the requests of a batch at the same time, on an event loop of their own.

    Args:
        judge: used while `connected` is entered.
        connected: opens its upstream's connections and closes them again; jobs have no end at
            which a scorer is closed.

    Attributes:
        ranks: its values mean nothing beyond their own request.
        spent: requests and tokens so far.
    """

    def __init__(
        self, judge: Judge, connected: Callable[[], AbstractAsyncContextManager[None]]
    ) -> None:
        self.name = judge.name
        self.ranks = judge.ranks
        self.spent = UpstreamCalls()
        self._judge = judge
        judge.observe = self._count
        self._connected = connected

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate, in the requests' order; see `Judge.score` for the errors."""
        return asyncio.run(self._score_all(requests))

    def _count(self, outcome: CallOutcome, spent: TokenUsage) -> None:
        """Add the requests, those whose answer was of no use included."""
        self.spent += UpstreamCalls(
            calls=outcome in ("answered", "unparseable"),
            cached_calls=outcome == "cached",
            prompt_tokens=spent.prompt_tokens,
            completion_tokens=spent.completion_tokens,
        )

    async def _score_all(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        async with self._connected():
            return await all_of(
                [self._judge.score(request) for request in requests], at_once=_HISTORIES_AT_ONCE
            )
