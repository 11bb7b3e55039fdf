"""Features of a candidate by itself: numbers that mean the same in every environment, and words.

Nothing here knows a benchmark or a model's name. A candidate is an attempt up to its last turn that
is read: its last action, the answers so far, the question, and the functions that may be called.

A state is a task and, if `after` is not 0, equal first actions. Its candidates are the next turns
of every attempt that was there. An attempt that had ended by then is no candidate: that it ended
would tell its outcome. Only if all have ended may their ends be read: the last turns of each, and
neither how many came before nor what was done in them.
"""

import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qguide.qnet.chat_messages import message_key
from qguide.qnet.features.words import words_of
from qguide.qnet.scoring.rules import ERROR
from qguide.qnet.types import Message
from qguide.training.choosing.attempts import AttemptTurn, RecordedAttempt
from qguide.training.choosing.calls import Call, calls_of
from qguide.training.choosing.schemas import (
    COUNTED,
    FLAWS,
    AskedQuestion,
    CallFit,
    DescribedFunction,
    fit_of,
    functions_of,
)

_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
_SIGNS: Final = ("`", "{", "(", "<", "=", "\n", ".", ",", '"', "#", "?", "|", "[", "'", ";", "\\")
_BEGINNINGS: Final = "[{<`"
_ENDS: Final = ")]};>`"
_MOST: Final = 4_000
_RUN: Final = 4
_WORDS_READ: Final = 48
_WORDS_SAID: Final = 160


@dataclass(frozen=True)
class ReadAttempt:
    """An attempt as far as it is read.

    Attributes:
        observed: its last action's answer may be read.
    """

    attempt: RecordedAttempt
    turns: tuple[AttemptTurn, ...]
    observed: bool
    asked: AskedQuestion
    functions: tuple[DescribedFunction, ...]
    answer: re.Pattern[str] | None = None

    @property
    def action(self) -> Message:
        """Its last action."""
        return self.turns[-1].action

    @cached_property
    def answers(self) -> tuple[str, ...]:
        """The answer to each action, as far as it may be read."""
        turns = self.turns if self.observed else self.turns[:-1]
        return tuple(turn.observation for turn in turns)

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """The calls of its last action, where functions may be called."""
        return calls_of(self.action) if self.functions else ()

    @cached_property
    def fit(self) -> CallFit:
        """The fit of its calls."""
        return fit_of(self.calls, self.functions, self.asked)

    @property
    def valid(self) -> bool:
        """By rules that need no training: no answer tells of an error, and calls fit the schema."""
        if self.functions and (not self.calls or any(self.fit.counts.get(f) for f in FLAWS)):
            return False
        if self.answer and not self.answer.search(self.action.text):
            return False
        return not any(ERROR.search(answer[:_MOST]) for answer in self.answers[-1:])

    @cached_property
    def action_key(self) -> str:
        """Equal for actions of equal effect: of equal answers, where a pattern finds one."""
        if self.answer and (said := self.answer.findall(self.action.text)):
            last = said[-1] if isinstance(said[-1], str) else said[-1][0]
            return " ".join(last.lower().split())
        if self.calls:
            return "\n".join(sorted(call.key for call in self.calls))
        return " ".join(self.action.text[:_MOST].lower().rstrip("; ").split())

    @cached_property
    def result_key(self) -> str:
        """Equal for equal answers to the last action; its action's where none may be read."""
        return self.answers[-1][:_MOST].strip() if self.observed else self.action_key

    @cached_property
    def parts(self) -> frozenset[str]:
        """Parts by which candidates resemble each other: arguments, or words and numbers."""
        if self.calls:
            return frozenset(
                f"{call.name} {name} {str(value).lower()}"
                for call in self.calls
                for name, value in (("", ""), *call.arguments.items())
            )
        last = self.answers[-1] if self.observed else ""
        return frozenset(words_of(f"{self.action.text[-1_500:]} {last[:1_500]}"))


NAMES: Final = (
    *(f"call {name}" for name in (*FLAWS, *COUNTED)),
    "calls read",
    "functions",
    "calls beside functions",
    *(f"action {name}" for name in ("length", "lines", "digits", "capitals", "pressed", "unique")),
    *(f"action {sign!r}" for sign in _SIGNS),
    *(f"action begins {sign}" for sign in _BEGINNINGS),
    *(f"action ends {sign}" for sign in _ENDS),
    "action words asked",
    "asked words said",
    "numbers asked",
    "numbers said",
    "action again",
    "action like before",
    *(f"answer {name}" for name in ("length", "lines", "error", "empty", "again", "asked", "rows")),
    "answer numbers in action",
    "errors",
    "answer nulls",
    "answer columns",
    "turns",
    "length so far",
    "asked length",
)


def numbers_of(candidate: ReadAttempt) -> list[float]:
    """The values of `NAMES`."""
    return [
        *_of_calls(candidate),
        *_of_action(candidate),
        *_of_answers(candidate),
        float(len(candidate.turns)),
        _log(sum(len(turn.action.text) for turn in candidate.turns)),
        _log(len(candidate.asked.text)),
    ]


def _of_calls(candidate: ReadAttempt) -> Iterator[float]:
    counts = candidate.fit.counts
    calls = max(1.0, counts.get("calls", 0.0))
    for name in (*FLAWS, *COUNTED):
        count = counts.get(name, 0.0)
        match name:
            case "texts said" | "numbers said":
                yield count / max(1.0, counts.get(name.removesuffix(" said"), 0.0))
            case "best function" | "function words":
                yield count / calls
            case _:
                yield _log(count)
    yield float(bool(candidate.calls))
    yield _log(len(candidate.functions))
    yield _log(counts.get("calls", 0.0)) - _log(len(candidate.functions))


def _of_action(candidate: ReadAttempt) -> Iterator[float]:
    text = candidate.action.text[-_MOST:]
    size = max(1, len(text))
    yield _log(len(text))
    yield _log(text.count("\n"))
    yield sum(sign.isdigit() for sign in text) / size
    yield sum(sign.isupper() for sign in text) / size
    yield len(zlib.compress(text.encode(), 1)) / size if len(text) > 40 else 0.5
    words = text.lower().split()
    yield len(set(words)) / max(1, len(words))
    for sign in _SIGNS:
        yield text.count(sign) / size * 20
    bare = text.strip()
    yield from (float(bare.startswith(sign)) for sign in _BEGINNINGS)
    yield from (float(bare.endswith(sign)) for sign in _ENDS)
    said, asked = frozenset(words_of(text)), candidate.asked.words
    yield len(said & asked) / max(1, len(said))
    yield len(said & asked) / max(1, len(asked))
    numbers = {f"{float(n):g}" for n in _NUMBER.findall(text)[:200]}
    wanted = candidate.asked.numbers
    yield len(numbers & wanted) / max(1, len(numbers))
    yield len(numbers & wanted) / max(1, len(wanted))
    before = [turn.action.text[-_MOST:] for turn in candidate.turns[:-1]]
    yield float(any(one.split() == candidate.action.text[-_MOST:].split() for one in before))
    yield _alike(said, frozenset(words_of(before[-1]))) if before else 0.0


def _of_answers(candidate: ReadAttempt) -> Iterator[float]:
    answers = [answer[:_MOST] for answer in candidate.answers]
    last = answers[-1] if answers else ""
    yield _log(len(last))
    yield _log(last.count("\n"))
    yield float(bool(ERROR.search(last)))
    yield float(not last.strip(" []()\n"))
    yield float(any(one.strip() == last.strip() for one in answers[:-1]))
    words = frozenset(words_of(last))
    yield len(words & candidate.asked.words) / max(1, len(candidate.asked.words))
    rows = last.count("(")
    yield _log(rows)
    numbers = set(_NUMBER.findall(last)[:200])
    yield len(numbers & set(_NUMBER.findall(candidate.action.text[-_MOST:]))) / max(1, len(numbers))
    yield sum(bool(ERROR.search(one)) for one in answers) / max(1, len(answers))
    yield _log(last.count("None") + last.count("null"))
    yield last.count(",") / max(1, rows) if rows else 0.0


def hashed_words(candidate: ReadAttempt) -> Iterator[str]:
    """Words for hashing: of the last action, of the answers, of calls, and of pairs of these."""
    yield from candidate.fit.traits
    answers = candidate.answers
    if answers:
        yield from (f"answer {word}" for word in _first_words(answers[-1]))
        yield from (f"earlier {word}" for one in answers[:-1] for word in _first_words(one))
    if not candidate.calls:
        text = candidate.action.text
        words = words_of(text[-_MOST:])
        yield from (f"said {word}" for word in words[:_WORDS_SAID])
        yield from (f"said {a} {b}" for a, b in pairwise(words[:_WORDS_READ]))
        yield from (f"begins {word}" for word in words[:3])
        yield from (f"ends {a} {b}" for a, b in pairwise(text[-60:].lower().split()[-4:]))
        if len(candidate.turns) > 1:
            before = candidate.turns[-2].action.text
            yield from (f"before {word}" for word in words_of(before[-_MOST:])[:_WORDS_READ])


def forms_of(candidate: ReadAttempt) -> NDArray[np.uint32]:
    """Runs of four bytes of its actions, white space included, as numbers: the form in which it is written."""
    texts = [turn.action.text[-_MOST:].encode(errors="replace") for turn in candidate.turns]
    read = np.frombuffer(b"\0".join((b"", *texts, b"")).ljust(_RUN), np.uint8)
    return np.unique(np.lib.stride_tricks.sliding_window_view(read, _RUN).copy().view(np.uint32))


def _first_words(text: str) -> Sequence[str]:
    """The first and the last words of an answer; numbers by their length."""
    words = words_of(text[:_MOST])
    kept = words if len(words) <= _WORDS_READ else (*words[:24], *words[-24:])
    return [re.sub(r"\d", "9", word) for word in kept]


def _alike(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / max(1, len(one | other))


def _log(count: float) -> float:
    return float(np.log1p(count))


@dataclass(frozen=True, slots=True)
class Cut:
    """The cut of attempts, and what is read of them; see `ChooseRecordedConfig`."""

    after: int = 0
    turns: int = 1
    observed: bool = False
    finished: bool = False
    answer: re.Pattern[str] | None = None

    def of(self, attempt: RecordedAttempt) -> tuple[AttemptTurn, ...] | None:
        """The turns to read; None where an attempt is too short, or ended too early."""
        if self.finished:
            return attempt.turns[-self.turns :] if len(attempt.turns) >= self.turns else None
        goes_on = self.observed and not attempt.runs_on
        if len(attempt.turns) < self.after + self.turns + goes_on:
            return None
        return attempt.turns[self.after : self.after + self.turns]


def candidates_of(attempts: Sequence[RecordedAttempt], cut: Cut) -> dict[str, list[ReadAttempt]]:
    """The candidates of each state with at least two of them, by the state's name."""
    questions = _questions(attempts)
    states: dict[str, list[ReadAttempt]] = defaultdict(list)
    for attempt, asked in zip(attempts, questions, strict=True):
        if taken := cut.of(attempt):
            functions = functions_of(attempt.opening)
            found = ReadAttempt(attempt, taken, cut.observed, asked, functions, cut.answer)
            states[_state_of(attempt, cut.after)].append(found)
    return {name: found for name, found in states.items() if len(found) > 1}


def _state_of(attempt: RecordedAttempt, after: int) -> str:
    keys = [message_key(turn.action) for turn in attempt.turns[:after]]
    return "\n".join([attempt.task, *keys])


def _questions(attempts: Sequence[RecordedAttempt]) -> Iterator[AskedQuestion]:
    """The last message before each attempt's first action, without its model's instructions.

    These are the lines with which nearly all tasks of a section begin.
    """
    texts: dict[tuple[str, str], set[str]] = defaultdict(set)
    for attempt in attempts:
        texts[attempt.section, attempt.model].add(_opening(attempt))
    shared = {key: _shared_lines(found) if len(found) > 1 else "" for key, found in texts.items()}
    known: dict[str, AskedQuestion] = {}
    for attempt in attempts:
        text = _opening(attempt).removeprefix(shared[attempt.section, attempt.model])
        yield known.setdefault(text, AskedQuestion(text))


def _opening(attempt: RecordedAttempt) -> str:
    return attempt.opening[-1].content if attempt.opening else ""


def _shared_lines(texts: Collection[str]) -> str:
    """The lines with which nine texts of ten begin.

    Not all: what is left of one model's instructions would tell Q which model it is, and one
    damaged record is enough for that.
    """
    ordered = sorted(texts)
    outliers = len(ordered) // 10
    return max((_shared(*ends) for ends in zip(ordered, ordered[-1 - outliers :], strict=False)), key=len)


def _shared(first: str, last: str) -> str:
    pairs = enumerate(zip(first, last, strict=False))
    end = next((i for i, (a, b) in pairs if a != b), min(len(first), len(last)))
    return first[: first.rfind("\n", 0, end) + 1]
