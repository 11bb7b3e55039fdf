"""Q models of the jobs that are judges, prompted chat models: `judge:NAME`."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from qguide.qnet.errors import ConfigError
from qguide.qnet.judging.judge import CallOutcome, Judge
from qguide.qnet.judging.prompt import read_prompt
from qguide.qnet.judging.settings import JudgeSettings
from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.qnet.scoring.rules import RuledScorer
from qguide.qnet.types import Candidate, History, Sampling, Scorer, ScoreRequest, ScoreResult
from qguide.qnet.work import TokenUsage, all_of
from qguide.training.rollouts.hosted import PatientUpstream, read_key
from qguide.training.rollouts.usage import UpstreamUsage

_HISTORIES_AT_ONCE: Final = 16


JUDGE: Final = "judge:"
"""Beginning of the name of such a Q model; the name of its table follows."""


class ServedJudge(PatientUpstream):
    """A chat model of an OpenAI-compatible server that is prompted for Q-values.

    Attributes:
        judge: how it is asked, and its budget.
    """

    judge: JudgeSettings = JudgeSettings()


_ROW_FIELDS: Final = ("model", "judge")
_ROW_FIELDS_OF_JUDGE: Final = ("mode", "prompt_file", "temperature", "max_tokens", "logprobs", "parameters")
MAY_CHANGE: Final = frozenset(ServedJudge.model_fields.keys() - set(_ROW_FIELDS)) | {
    f"judge.{name}" for name in JudgeSettings.model_fields.keys() - set(_ROW_FIELDS_OF_JUDGE)
}
"""Fields of a judge that a resumed run may change; Q-values depend on the others."""


class _Upstream:
    """The judge's upstream, connected for one batch at a time."""

    def __init__(self, name: str, served: ServedJudge) -> None:
        self.name = name
        self.model = served.model
        self._served = served
        self._key = read_key(f"judge {name}", served.api_key_variable)
        self._policy: OpenAICompatiblePolicy | None = None

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Draw through the open connections."""
        assert self._policy is not None, "a judge is asked while it is connected"
        return await self._policy.sample(history, n=n, sampling=sampling)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Keep connections open for the block."""
        self._policy = OpenAICompatiblePolicy.of(self.name, self._served, self._key, self._served.limits)
        try:
            yield
        finally:
            await self._policy.close()


class JudgeScorer(Scorer):
    """A judge of a job: the requests of a batch are judged at the same time, on an event loop of their own.

    Its upstream's connections are open as long, because jobs have no end at which a scorer is closed.

    Attributes:
        ranks: its values mean nothing beyond their own request.
        usage: requests, tokens and cost of this run; an upstream's cached tokens count as read.
    """

    def __init__(self, name: str, served: ServedJudge) -> None:
        self._upstream = _Upstream(name.removeprefix(JUDGE), served)
        self._judge = Judge(name, self._upstream, served.judge)
        self._judge.observe = self._count
        self.name, self.ranks = name, self._judge.ranks
        self._prices = served.prices
        self.usage = UpstreamUsage(cost=0.0 if self._prices else None)

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate, in the requests' order; see `Judge.score` for the errors."""
        return asyncio.run(self._score_all(requests))

    async def _score_all(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        async with self._upstream.connected():
            return await all_of([self._judge.score(request) for request in requests], at_once=_HISTORIES_AT_ONCE)

    def _count(self, outcome: CallOutcome, spent: TokenUsage) -> None:
        read = TokenUsage(spent.prompt_tokens, spent.completion_tokens)
        answered = outcome in ("answered", "unparseable")  # those whose answer was of no use included
        self.usage += UpstreamUsage.of([read], self._prices).model_copy(update={"requests": int(answered)})


def usage_of(scorer: object) -> UpstreamUsage | None:
    """Usage of a judge, behind rules or not; None for any other scorer."""
    scorer = scorer.inner if isinstance(scorer, RuledScorer) else scorer
    return scorer.usage if isinstance(scorer, JudgeScorer) else None


def build_judge_scorer(name: str, judges: Mapping[str, ServedJudge]) -> JudgeScorer:
    """Build the scorer of `judge:NAME`; nothing is asked before the first request."""
    return JudgeScorer(name, _find(name, judges))


def prompt_sha256(name: str, judges: Mapping[str, ServedJudge]) -> str:
    """Hash of a judge's prompt, which a resumed run must not change."""
    asked = _find(name, judges).judge
    return read_prompt(asked.prompt_file, asked.criteria).digest


def _find(name: str, judges: Mapping[str, ServedJudge]) -> ServedJudge:
    table = name.removeprefix(JUDGE)
    if table not in judges:
        raise ConfigError(
            f"the Q model is {name!r}, but inference.judges has {', '.join(judges) or 'no entry'}; "
            f"add the model there under the name {table!r}"
        )
    return judges[table]
