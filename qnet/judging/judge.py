"""Q(s, a) from a judge: any chat model that is asked how good an agent's next turns are.

In the mode `score` each distinct candidate is one request, and Q is the mean of the score's digit under the judge's
token probabilities, or the digit where the upstream gives none; with criteria, the weighted mean of the digits by each.
In the mode `rank` all candidates are one request, and Q is the place in the order: such values mean nothing beyond
their own step. Both are in [0, 1].

What was answered is not asked again, and what cannot be read is an error, never a score.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, Literal, Protocol
from weakref import WeakValueDictionary

from cachetools import LRUCache

from qguide.qnet.decision.history_window import RequestSize
from qguide.qnet.decision.selection import distinct
from qguide.qnet.errors import (
    HistoryTooLongError,
    InvalidCandidatesError,
    JudgeAnswerError,
    JudgeBusyError,
    JudgeRefusedError,
    UpstreamBusyError,
    UpstreamRefusedError,
)
from qguide.qnet.judging.answers import read_ranking, read_score, read_verdict, weighted_score
from qguide.qnet.judging.budget import JudgeBudget
from qguide.qnet.judging.prompt import JudgePrompt, read_prompt
from qguide.qnet.judging.settings import JudgeSettings
from qguide.qnet.types import Candidate, History, Message, Policy, Sampling, ScoreRequest, ScoreResult, Verdict
from qguide.qnet.work import NOTHING, TokenUsage, UpstreamCalls, all_of, collect_usage, current_tenant, total_of

_LOGPROBS: Final[Mapping[str, object]] = {"logprobs": True, "top_logprobs": 20}
"""As many alternatives as OpenAI and vLLM give: all ten digits with room to spare."""

_QUOTA: Final = "insufficient_quota"
_WAIT_S: Final = 1.0
_log = logging.getLogger(__name__)

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
    verdict: Verdict | None = None
    cached: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A step that is being judged, and its caller."""

    caller: str


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Question:
    """A question of the steps that are being judged.

    Attributes:
        asking: held while it is asked, so that two steps with the same question ask it once.
        admitted_by: the step that has set a request of the budget aside for it; None if there is none, or it was sent.
    """

    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    admitted_by: _Step | None = None


_Read = Callable[[Candidate], tuple[tuple[float, ...], Verdict | None]]
"""Values of an answer, and its verdict if there are criteria."""


class Judge:
    """A prompted chat model as a scorer; owned by one event loop."""

    def __init__(self, name: str, upstream: JudgeUpstream, settings: JudgeSettings) -> None:
        self.name = name
        self.settings = settings
        self.model = upstream.model
        self._upstream = upstream
        self._prompt: JudgePrompt = read_prompt(settings.prompt_file, settings.criteria)
        self._budget = JudgeBudget(name, settings)
        self.observe: Callable[[CallOutcome, TokenUsage], None] = lambda *_: None
        plain = settings.mode == "score" and not settings.criteria
        self._takes_logprobs = settings.logprobs and plain
        self._known: LRUCache[str, _Answer] = LRUCache(settings.cached_answers)
        self._questions: WeakValueDictionary[str, _Question] = WeakValueDictionary()

    @property
    def ranks(self) -> bool:
        """True if its values mean nothing beyond their own step."""
        return self.settings.mode == "rank"

    @property
    def digest(self) -> str:
        """Hash of all that its values depend on: model, instructions and how it is asked."""
        asked = self.settings
        parts = [self.model, self._prompt.digest, asked.mode, asked.temperature, asked.logprobs]
        weights = [asked.weight_of] if asked.criteria else []
        return sha256(json.dumps([*parts, asked.parameters, *weights]).encode()).hexdigest()

    @property
    def context(self) -> int | None:
        """Most tokens of a question, as they are estimated; None if that is not set."""
        return self.settings.context or None

    def size(self, request: ScoreRequest) -> RequestSize | None:
        """Estimated tokens of a request; None without a context."""
        if self.context is None:
            return None
        return self._prompt.size(request, ranks=self.ranks, context=self.context)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Q of each candidate, in [0, 1]; equal candidates are judged once.

        Raises:
            HistoryTooLongError: the conversation exceeds the settings' context, or the upstream
                says that it exceeds its own.
            InvalidCandidatesError: there are no candidates, a single one to rank, or observations.
            JudgeAnswerError: an answer holds no score.
            JudgeBudgetError: the step would exceed a limit of the settings.
            JudgeBusyError: the upstream takes no more requests now.
            JudgeRefusedError: the upstream says that the question is wrong.
            UpstreamError: the upstream failed, was silent or is unreachable.
        """
        unique = distinct(request.candidates)
        self._require_judgeable(request, len(unique.messages))
        self._require_fit(replace(request, candidates=unique.messages))
        verdicts: list[Verdict] = []
        if self.ranks:
            values, answers = await self._rank(request.history, unique.messages)
        else:
            answers = await self._answers(
                [self._prompt.score(request.history, message) for message in unique.messages], self._read_score
            )
            values = [answer.values[0] for answer in answers]
            verdicts = [answer.verdict for answer in answers if answer.verdict]
        return ScoreResult(
            q_values=unique.of_each(values),
            computed_tokens=sum(a.spent.tokens for a in answers if not a.cached),
            cached_tokens=sum(a.spent.tokens for a in answers if a.cached),
            upstream=_usage_of(answers),
            verdicts=unique.of_each(verdicts),
        )

    def _read_score(self, answer: Candidate) -> tuple[tuple[float, ...], Verdict | None]:
        if not self.settings.criteria:
            return (read_score(answer, judge=self.name),), None
        verdict = read_verdict(answer, self.settings.criteria, judge=self.name)
        return (weighted_score(verdict, self.settings.weight_of),), verdict

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

    def _require_fit(self, request: ScoreRequest) -> None:
        """Refuse what the upstream would refuse, before it is asked once for each candidate."""
        size = self.size(request)
        if size is None or (tokens := sum(size.exchanges) + size.other) <= size.context:
            return
        raise HistoryTooLongError(
            f"history and candidate have about {tokens:,} tokens as a question; judge {self.name} "
            f"takes {size.context:,} (context); shorten the history"
        )

    async def _rank(self, history: History, candidates: Sequence[Message]) -> tuple[list[float], list[_Answer]]:
        """Values in the candidates' order, and the answer.

        Models prefer some places in a list. So the order shown does not depend on the order drawn,
        in which the greedy candidate comes first, but on a hash of the texts; and the same
        candidates are the same question, however they were drawn.
        """
        shown = sorted(range(len(candidates)), key=lambda i: _text_hash(history, candidates[i]))
        [answer] = await self._answers(
            [self._prompt.rank(history, [candidates[i] for i in shown])],
            lambda answer: (read_ranking(answer, len(candidates), judge=self.name), None),
        )
        value_of = dict(zip(shown, answer.values, strict=True))
        return [value_of[i] for i in range(len(candidates))], [answer]

    async def _answers(self, texts: Sequence[History], read: _Read) -> list[_Answer]:
        """The answers to a step's questions, each of which is asked once, or none of them."""
        tenant = current_tenant()
        salt, step = tenant.cache_salt, _Step(tenant.name)
        keys = [_text_hash(text, salt=salt) for text in texts]
        questions = [self._questions.setdefault(key, _Question()) for key in keys]
        due = self._admit(step, dict(zip(keys, questions, strict=True)))
        try:
            return await all_of(
                [
                    self._ask(key, question, text, read)
                    for key, question, text in zip(keys, questions, texts, strict=True)
                ],
                at_once=self.settings.parallel,
            )
        finally:
            for question in due:
                if question.admitted_by is step:
                    question.admitted_by = None
                    self._budget.release(1, caller=step.caller)

    def _admit(self, step: _Step, questions: Mapping[str, _Question]) -> list[_Question]:
        """The questions for which the step has set a request aside.

        It needs none for those that are known or that another step is asking.
        """
        due = [
            question
            for key, question in questions.items()
            if self._known.get(key) is None and question.admitted_by is None and not question.asking.locked()
        ]
        self._budget.admit(len(due), caller=step.caller)
        for question in due:
            question.admitted_by = step
        return due

    async def _ask(self, key: str, question: _Question, text: History, read: _Read) -> _Answer:
        async with question.asking:
            # Another step may have asked it while this one waited for the lock.
            if known := self._known.get(key):
                self.observe("cached", NOTHING)
                return replace(known, cached=True)
            caller = current_tenant().name
            if question.admitted_by is None:  # the step that was to ask it has failed
                self._budget.admit(1, caller=caller)
            else:  # perhaps by a key of the same cache group
                self._budget.hand_over(of=question.admitted_by.caller, to=caller)
            question.admitted_by = None
            drawn, spent = await self._drawn(text)
            try:
                values, verdict = read(drawn)
            except JudgeAnswerError as error:
                _log.warning("a judge's answer cannot be read", exc_info=error)
                self.observe("unparseable", spent)
                raise
            self.observe("answered", spent)
            answer = _Answer(values, spent, verdict)
            if self._known.maxsize:  # 0 keeps none
                self._known[key] = answer
            return answer

    async def _drawn(self, question: History) -> tuple[Candidate, TokenUsage]:
        """The answer and its tokens, which count against the budget even if it fails."""
        with collect_usage() as answered:
            try:
                drawn = await self._draw_or_explain(question)
            except BaseException:  # including the cancellation when the client disconnects
                self.observe("failed", total_of(answered))
                raise
            finally:
                self._budget.spend(total_of(answered).tokens, caller=current_tenant().name)
        return drawn, total_of(answered)

    async def _draw_or_explain(self, question: History) -> Candidate:
        """The answer; a refusal concerns the judge's settings, not the caller's request."""
        try:
            return await self._draw(question)
        except UpstreamRefusedError as error:
            _log.warning("a judge's upstream refused its question", exc_info=error)
            named = ", ".join(filter(None, (error.upstream_code, error.parameter)))
            raise JudgeRefusedError(
                f"the upstream refused judge {self.name}'s question"
                f"{f' ({named})' if named else ''}; change the judge's settings, or choose another "
                "model; the log has the reason at the level DEBUG"
            ) from error
        except UpstreamBusyError as error:
            wait_s = None if error.upstream_code == _QUOTA else error.retry_after_s or _WAIT_S
            raise JudgeBusyError(
                f"the upstream of judge {self.name} takes no more requests now; try later", retry_after_s=wait_s
            ) from error

    async def _draw(self, question: History) -> Candidate:
        """The answer to a request that was admitted."""
        if not self._takes_logprobs:
            return await self._sample(question, {})
        try:
            return await self._sample(question, _LOGPROBS)
        except UpstreamRefusedError as error:
            if not _may_mean_logprobs(error):
                raise
            self._budget.admit(1, caller=current_tenant().name)
            drawn = await self._sample(question, {})
            # Only now: had this been refused as well, the log-probabilities would not have been the reason.
            self._takes_logprobs = False
            return drawn

    async def _sample(self, question: History, more: Mapping[str, object]) -> Candidate:
        asked = self.settings
        parameters: dict[str, Any] = {**asked.parameters, **more}
        self._budget.send(caller=current_tenant().name)
        sampling = Sampling(asked.temperature, asked.max_tokens, parameters=parameters)
        [drawn] = await self._upstream.sample(question, n=1, sampling=sampling)
        return drawn


def _may_mean_logprobs(error: UpstreamRefusedError) -> bool:
    """False if the refusal names another cause: a field, or the content."""
    parameter = error.parameter or ""
    if "logprobs" in parameter or "logprobs" in str(error):
        return True
    return not parameter and "content" not in error.upstream_code


def _usage_of(answers: Sequence[_Answer]) -> UpstreamCalls:
    asked = [answer.spent for answer in answers if not answer.cached]
    spent = total_of(asked)
    return UpstreamCalls(
        calls=len(asked),
        cached_calls=len(answers) - len(asked),
        prompt_tokens=spent.prompt_tokens,
        completion_tokens=spent.completion_tokens,
    )


def _text_hash(history: History, *more: Message, salt: str = "") -> str:
    keys = [message.key for message in (*history, *more)]
    return sha256(json.dumps([salt, keys]).encode()).hexdigest()
