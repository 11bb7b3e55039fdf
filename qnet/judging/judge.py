"""Q(s, a) from a judge: any chat model that is asked how good an agent's next turns are.

In the mode `score` each distinct candidate is one request, and Q is the mean of the score's digit
under the judge's token probabilities, or the digit where the upstream gives none. In the mode
`rank` all candidates are one request, and Q is the place in the order: such values mean nothing
beyond their own step. Both are in [0, 1].

What was answered is not asked again, and what cannot be read is an error, never a score.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final, Literal, Protocol
from weakref import WeakValueDictionary

from qnet.decision.selection import distinct
from qnet.errors import InvalidCandidatesError, JudgeAnswerError, UpstreamRefusedError
from qnet.judging.answers import read_ranking, read_score
from qnet.judging.budget import JudgeBudget
from qnet.judging.prompt import JudgePrompt, read_prompt
from qnet.judging.settings import JudgeSettings
from qnet.policies.usage_ledger import collect_usage
from qnet.support.concurrency import all_of
from qnet.support.lru_cache import LRUCache
from qnet.tenant import current_tenant
from qnet.types import Candidate, History, Message, Policy, Sampling, ScoreRequest, ScoreResult
from qnet.usage import NOTHING, JudgeUsage, TokenUsage, total_of

_LOGPROBS: Final[Mapping[str, object]] = {"logprobs": True, "top_logprobs": 20}
"""As many alternatives as OpenAI and vLLM give: all ten digits with room to spare."""

CallOutcome = Literal["answered", "cached", "unparseable", "failed"]
"""End of a request to the judge; `failed` if there was no answer."""


class JudgeUpstream(Policy, Protocol):
    """A policy with the name of its model, which identifies what was asked."""

    model: str


@dataclass(frozen=True, slots=True)
class _Answer:
    """Values read from one answer, and its tokens."""

    values: tuple[float, ...]
    spent: TokenUsage
    cached: bool = False


class Judge:
    """A prompted chat model as a scorer; owned by one event loop.

    Args:
        name: of the Q model.
        upstream: answers the questions; closed by whoever made it.

    Attributes:
        observe: called at the end of each request with its tokens.

    Raises:
        ConfigError: the prompt file cannot be read.
    """

    def __init__(
        self,
        name: str,
        upstream: JudgeUpstream,
        settings: JudgeSettings,
    ) -> None:
        self.name = name
        self.settings = settings
        self.model = upstream.model
        self._upstream = upstream
        self._prompt: JudgePrompt = read_prompt(settings.prompt_file)
        self._budget = JudgeBudget(name, settings)
        self.observe: Callable[[CallOutcome, TokenUsage], None] = lambda *_: None
        self._takes_logprobs = settings.logprobs and settings.mode == "score"
        self._known = LRUCache[str, _Answer](size=settings.cached_answers)
        # One lock per question, so that two requests with the same one ask it once.
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def ranks(self) -> bool:
        """True if its values mean nothing beyond their own step."""
        return self.settings.mode == "rank"

    @property
    def digest(self) -> str:
        """Hash of all that its values depend on: model, instructions and how it is asked."""
        asked = self.settings
        parts = [self.model, self._prompt.digest, asked.mode, asked.temperature, asked.logprobs]
        return sha256(json.dumps([*parts, asked.parameters]).encode()).hexdigest()

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Q of each candidate, in [0, 1]; equal candidates are judged once.

        Raises:
            HistoryTooLongError: the upstream says that the conversation exceeds its context.
            InvalidCandidatesError: there are no candidates, a single one to rank, or observations.
            JudgeAnswerError: an answer holds no score.
            JudgeBudgetError: a limit of the settings is reached.
            UpstreamError: the upstream failed, was silent, is unreachable or busy.
            UpstreamRefusedError: the upstream says that the request is wrong.
        """
        unique = distinct(request.candidates)
        self._require_judgeable(request, len(unique.messages))
        if self.ranks:
            values, answers = await self._rank(request.history, unique.messages)
        else:
            answers = await all_of(
                [self._score(request.history, message) for message in unique.messages],
                at_once=self.settings.parallel,
            )
            values = [answer.values[0] for answer in answers]
        return ScoreResult(
            q_values=tuple(values[i] for i in unique.index),
            computed_tokens=sum(_tokens(a.spent) for a in answers if not a.cached),
            cached_tokens=sum(_tokens(a.spent) for a in answers if a.cached),
            judge=_usage_of(answers),
        )

    def _require_judgeable(self, request: ScoreRequest, distinct_candidates: int) -> None:
        if not distinct_candidates:
            raise InvalidCandidatesError("there are 0 candidates to score; give at least 1")
        if request.observations:
            raise InvalidCandidatesError(
                f"candidates bring an observation, but {self.name} is a judge, which judges an "
                "action before anything is observed; leave out candidates[].observation"
            )
        if self.ranks and distinct_candidates == 1:
            raise InvalidCandidatesError(
                f"there is 1 candidate, but {self.name} ranks candidates and has no value for a "
                "single one; give at least 2, or use a judge with the mode 'score'"
            )

    async def _score(self, history: History, candidate: Message) -> _Answer:
        return await self._ask(
            self._prompt.score(history, candidate),
            lambda answer: (read_score(answer, judge=self.name),),
        )

    async def _rank(
        self, history: History, candidates: Sequence[Message]
    ) -> tuple[list[float], list[_Answer]]:
        """Values in the candidates' order, and the answer.

        Models prefer some places in a list. So the order shown does not depend on the order drawn,
        in which the greedy candidate comes first, but on a hash of the texts; and the same
        candidates are the same question, however they were drawn.
        """
        shown = sorted(range(len(candidates)), key=lambda i: _text_hash(history, candidates[i]))
        answer = await self._ask(
            self._prompt.rank(history, [candidates[i] for i in shown]),
            lambda answer: read_ranking(answer, len(candidates), judge=self.name),
        )
        value_of = dict(zip(shown, answer.values, strict=True))
        return [value_of[i] for i in range(len(candidates))], [answer]

    async def _ask(
        self, question: History, read: Callable[[Candidate], tuple[float, ...]]
    ) -> _Answer:
        """The values of the answer to a question, which is asked once."""
        key = _text_hash(question, salt=current_tenant().cache_salt)
        asking = self._asking.setdefault(key, asyncio.Lock())
        async with asking:
            if known := self._known.get(key):
                self.observe("cached", NOTHING)
                return replace(known, cached=True)
            self._budget.admit()
            drawn, spent = await self._drawn(question)
            try:
                answer = _Answer(read(drawn), spent)
            except JudgeAnswerError:
                self.observe("unparseable", spent)
                raise
            self.observe("answered", spent)
            self._known.put(key, answer, size=1)
            return answer

    async def _drawn(self, question: History) -> tuple[Candidate, TokenUsage]:
        """The answer and its tokens, which count against the budget even if it fails."""
        with collect_usage() as answered:
            try:
                drawn = await self._draw(question)
            except BaseException:  # including the cancellation when the client disconnects
                self.observe("failed", total_of(answered))
                raise
            finally:
                self._budget.spend(_tokens(total_of(answered)))
        return drawn, total_of(answered)

    async def _draw(self, question: History) -> Candidate:
        if not self._takes_logprobs:
            return await self._sample(question, {})
        try:
            return await self._sample(question, _LOGPROBS)
        except UpstreamRefusedError:
            # It may be `logprobs` that was refused. Any other fault is refused again.
            drawn = await self._sample(question, {})
            self._takes_logprobs = False
            return drawn

    async def _sample(self, question: History, more: Mapping[str, object]) -> Candidate:
        asked = self.settings
        parameters: dict[str, Any] = {**asked.parameters, **more}
        sampling = Sampling(asked.temperature, asked.max_tokens, parameters=parameters)
        [drawn] = await self._upstream.sample(question, n=1, sampling=sampling)
        return drawn


def _tokens(spent: TokenUsage) -> int:
    return spent.prompt_tokens + spent.completion_tokens


def _usage_of(answers: Sequence[_Answer]) -> JudgeUsage:
    asked = [answer.spent for answer in answers if not answer.cached]
    spent = total_of(asked)
    return JudgeUsage(
        calls=len(asked),
        cached_calls=len(answers) - len(asked),
        prompt_tokens=spent.prompt_tokens,
        completion_tokens=spent.completion_tokens,
    )


def _text_hash(history: History, *more: Message, salt: str = "") -> str:
    keys = [message.key for message in (*history, *more)]
    return sha256(json.dumps([salt, keys]).encode()).hexdigest()
