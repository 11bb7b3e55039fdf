"""Perturbation: candidates drawn under paraphrases of the task (Q*Agent-I-aug, A.5).

The paper has WebShop's task descriptions paraphrased by another model. Here this is done for any
environment: the task is found in the first user message, and nothing else of the history changes.
Paraphrases are for drawing alone; candidates are scored after the true history.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final, Protocol, TypeVar

from pydantic import TypeAdapter

from qguide.qnet.chat_messages import reworded
from qguide.qnet.errors import InvalidRequestError, MalformedHistoryError, QGuideError
from qguide.qnet.types import Candidate, History, Message, Policy, Sampling, TaskMarker, spent_on
from qguide.qnet.work import NOTHING, TokenUsage, all_of, collect_usage, current_tenant, taken_by, taker, total_of

_log = logging.getLogger(__name__)

PROMPT = "Paraphrase the text: {task}"
MAX_TASK_CHARACTERS = 4_000
DEFAULT_TIMEOUT_S = 20.0
DEFAULT_MAX_TOKENS = 256

_TEMPERATURE = 1.0
_TEXTS: Final = TypeAdapter(tuple[str, ...])
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Place of the task's description in a history."""

    message: int
    start: int
    end: int

    def text(self, history: History) -> str:
        """The task's description."""
        return history[self.message].content[self.start : self.end]

    def reworded(self, history: History, text: str) -> History:
        """The same history with another description of the task."""
        old = history[self.message]
        content = old.content[: self.start] + text + old.content[self.end :]
        wire = old.wire
        if wire is not None:
            wire = {**wire, "content": reworded(wire.get("content") or "", self.start, self.end, text)}
        new = replace(old, content=content, wire=wire)
        return (*history[: self.message], new, *history[self.message + 1 :])


def find_task(history: History, *, task: str | None = None, markers: Sequence[TaskMarker] = ()) -> TaskPlace:
    """Find the task's description in the first user message.

    It is `task`, if the caller says so; else what follows the last opening of the first marker
    that occurs; else the whole message. The last, because examples of other tasks may come before.
    """
    index = next((i for i, m in enumerate(history) if m.role == "user"), None)
    if index is None:
        raise MalformedHistoryError("there is no user message that could hold the task")
    content = history[index].content
    if task is not None:
        start = content.rfind(task) if task else -1
        if start < 0:
            raise InvalidRequestError(
                "task is not in the first user message; give the part of it that says what to do, letter by letter"
            )
        return TaskPlace(index, start, start + len(task))
    for marker in markers:
        *_, last = [None, *re.finditer(rf"{re.escape(marker.opening)}\s*(\S.*)", content)]
        if last is not None:
            text = last[1].partition(marker.end)[0].rstrip()
            return TaskPlace(index, last.start(1), last.start(1) + len(text))
    return TaskPlace(index, 0, len(content))


class RowCache(Protocol):
    """Keeps what was drawn for a task; what it lost is drawn again. It never raises."""

    async def get(self, key: str, parse: Callable[[bytes], T]) -> T | None:
        """The parsed row of a key; None if it is unknown."""
        ...

    async def put(self, key: str, row: bytes) -> None:
        """Keep a row, in place of an earlier one."""
        ...


@dataclass(frozen=True, slots=True)
class Paraphrases:
    """A task in other words.

    Attributes:
        texts: as many as were asked for; the task itself where a paraphrase failed.
        spent: on them now; nothing where all came from the cache.
    """

    texts: tuple[str, ...]
    spent: TokenUsage = NOTHING
    warnings: tuple[str, ...] = ()


class Paraphraser:
    """Draws paraphrases of tasks from a policy and keeps them.

    Args:
        content: stands for the model in the cache, where the policy's name would not: it may be
            another model's tomorrow.
        timeout_s: an answer that takes longer is done without.
        max_tokens: of one paraphrase; None leaves it to the policy.
    """

    def __init__(
        self,
        policy: Policy,
        cache: RowCache,
        *,
        content: str = "",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_tokens: int | None = DEFAULT_MAX_TOKENS,
    ) -> None:
        self._policy = policy
        self._content = content
        self._cache = cache
        self._timeout_s = timeout_s
        self._sampling = Sampling(temperature=_TEMPERATURE, max_tokens=max_tokens)

    async def paraphrase(self, task: str, *, n: int, within_s: float | None = None) -> Paraphrases:
        """`n` texts for a task within the caller's patience; a failure leaves the task as it is and is a warning."""
        if not task.strip():
            return _unchanged(task, n, "it has no words")
        if len(task) > MAX_TASK_CHARACTERS:
            return _unchanged(
                task,
                n,
                f"it has {len(task):,} characters, and {MAX_TASK_CHARACTERS:,} are paraphrased at "
                "most; give the task alone as `task`",
            )
        key = self._key(task)
        known = (await self._cache.get(key, _TEXTS.validate_json) or ())[:n]
        if len(known) == n:
            return _counted(task, known, NOTHING)
        with collect_usage() as answered:
            drawn = await self._draw(task, n - len(known), min(self._timeout_s, within_s or self._timeout_s))
        if isinstance(drawn, str):
            return _unchanged(task, n, drawn, known, total_of(answered))
        texts = (*known, *((c.message.content.strip() if c.finished else "") or task for c in drawn))
        usable = tuple(text for text in texts if text != task)
        if len(usable) > len(known):  # what failed is drawn again the next time
            await self._cache.put(key, _TEXTS.dump_json(usable))
        return _counted(task, texts, spent_on(drawn))

    def _key(self, task: str) -> str:
        """Of the cache; salted, because a paraphrase that cost nothing tells that it was known."""
        parts = (self._policy.name, self._content, current_tenant().cache_salt, task)
        return sha256("\0".join(parts).encode()).hexdigest()

    async def _draw(self, task: str, n: int, timeout_s: float) -> list[Candidate] | str:
        """The policy's replies, or the reason why there are none."""
        history = (Message("user", PROMPT.format(task=task)),)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._policy.sample(history, n=n, sampling=self._sampling)
        except TimeoutError:
            return f"no paraphrase came within {timeout_s:g} s"
        except QGuideError as error:
            return f"{self._policy.name} failed: {error}"
        except Exception as error:  # its message may quote the task
            _log.error("the paraphraser failed", exc_info=error)
            return f"{self._policy.name} failed"


def _counted(task: str, texts: tuple[str, ...], spent: TokenUsage) -> Paraphrases:
    failed = texts.count(task)
    warnings = (f"{failed} of {len(texts)} paraphrases failed and are the task itself",)
    return Paraphrases(texts, spent, warnings if failed else ())


def _unchanged(task: str, n: int, why: str, known: tuple[str, ...] = (), spent: TokenUsage = NOTHING) -> Paraphrases:
    texts = (*known, *[task] * (n - len(known)))
    return Paraphrases(texts, spent, (f"the task was not paraphrased: {why}",))


def draw_texts(texts: Sequence[str], task: str, *, first: int, n: int) -> list[str]:
    """The task's text under which each of `n` candidates is drawn.

    Args:
        texts: paraphrases; candidate k > 0 of a step gets number k - 1, round and round.
        task: the true text, which candidate 0 gets.
        first: number of the first of these candidates in its step.
    """
    return [texts[(k - 1) % len(texts)] if k and texts else task for k in range(first, first + n)]


class PerturbedPolicy:
    """A policy for one decision: the first candidate after the history, the others reworded.

    `draw_texts` says how, however many calls it takes.
    """

    def __init__(
        self, policy: Policy, place: TaskPlace, texts: Sequence[str], *, repeats_at: float | None = None
    ) -> None:
        self.name = policy.name
        self.perturbed = 0
        self._refused: list[str] = []
        self._repeats = 0
        self._repeats_at = repeats_at
        self._shown: set[str] = set()
        self._policy = policy
        self._place = place
        self._texts = tuple(texts)
        self._drawn = 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """Paraphrases that the task's words replaced, and candidates drawn above temperature 0."""
        if not self._repeats:
            return tuple(self._refused)
        said = (
            f"temperature is 0, at which candidates of the same words are equal; {self._repeats} "
            f"drawn at {self._repeats_at:g} (QGUIDE_GUIDANCE_TEMPERATURE)"
        )
        return (*self._refused, said)

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Draw `n` candidates, those of the same text with one call."""
        task = self._place.text(history)
        texts = draw_texts(self._texts, task, first=self._drawn, n=n)
        self._drawn += n
        counts = Counter(texts)
        drawn = await all_of(
            [self._draw(history, text, counts[text], sampling, greedy=text == texts[0]) for text in counts]
        )
        waiting = {text: iter(mine) for text, mine in zip(counts, drawn, strict=True)}
        return [next(waiting[text]) for text in texts]

    async def _draw(self, history: History, text: str, n: int, sampling: Sampling, *, greedy: bool) -> list[Candidate]:
        sampling = replace(sampling, first_greedy=sampling.first_greedy and greedy)
        repeated = text in self._shown
        self._shown.add(text)
        if text != self._place.text(history):
            reworded = self._place.reworded(history, text)
            try:
                return await self._sample(reworded, n, sampling, repeated=repeated, is_reworded=True)
            except InvalidRequestError as error:  # too long, or a word that it must not read
                self._refused.append(f"a paraphrase was not used: {error}")
                repeated = True  # the first candidate had the task's own words
        return await self._sample(history, n, sampling, repeated=repeated)

    async def _sample(
        self, history: History, n: int, sampling: Sampling, *, repeated: bool, is_reworded: bool = False
    ) -> list[Candidate]:
        """Draw under one text; what would be equal at temperature 0 is drawn at another."""
        warmer = self._repeats_at if sampling.temperature == 0 and (repeated or n > 1) else None
        if warmer:
            sampling = replace(sampling, temperature=warmer, first_greedy=not repeated)
        take, came = taker(), list[Candidate]()

        def noted(some: list[Candidate]) -> None:
            came.extend(some)
            if take:
                take(some)

        try:
            with taken_by(take and noted):
                drawn = await self._policy.sample(history, n=n, sampling=sampling)
            came = came or drawn
            return drawn
        finally:  # counts also what was taken of a draw that is given up
            has_greedy = not repeated and any(one.greedy is not False for one in came)
            self._repeats += len(came) - has_greedy if warmer else 0
            self.perturbed += len(came) if is_reworded else 0
