"""Argument values that were rarely tried, with the outcomes of the episodes that tried them.

A Q model knows little of what it has seldom seen: "Dora: 3 successes of 7" says where to record
more. The arguments of a tool call are those of its JSON; those of an action in words are its words
behind the first.
"""

import json
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from qguide.qnet.chat_messages import ACTION_PREFIX, message_key
from qguide.qnet.records import OfferRow
from qguide.qnet.types import Message
from qguide.training.guidance_report.columns import Column
from qguide.training.guidance_report.schema import RareValue

RARE: Final = 10
"""A value that fewer episodes tried is rare."""

SHOWN: Final = 20
_MOST_VALUES: Final = 100
"""An argument with more values is free text, in which each is rare."""
_MOST_KEPT: Final = 20_000
_MOST_CHARACTERS: Final = 60
_CALL: Final = re.compile(r"(?<![\w.-])([\w.-]+)\((\{.*\})\)")
_MOST_READ: Final = 10_000
"""Characters of an action; what is longer is a document, whose words are no arguments."""
_WORDS: Final = re.compile(r"[^\s\[\](),;]+")

_Value = tuple[str, str, str]
"""Tool or verb, argument ("" of an action in words), and value."""


@dataclass(slots=True)
class _Tried:
    """Steps at which a value was offered, and the first few episodes that tried it."""

    offered: int = 0
    count: int = 0
    episodes: "array[int]" = field(default_factory=lambda: array("l"))


@dataclass(slots=True)
class ArgumentValues:
    """Values of all episodes; beyond 20,000 new ones are not noted."""

    _tried: dict[_Value, _Tried] = field(default_factory=dict)
    _episodes: int = 0

    def add(self, rows: Sequence[OfferRow]) -> None:
        """Note one episode."""
        for row in rows:
            offered = {value for one in row.candidates for value in _values(one.content)}
            for value in offered:
                self._note(value).offered += 1
        for value in {value for row in rows for value in _values(row.taken)}:
            tried = self._note(value)
            tried.count += 1
            if len(tried.episodes) < RARE:
                tried.episodes.append(self._episodes)
        self._episodes += 1

    def rare(self, outcomes: Column, success_above: float) -> tuple[RareValue, ...]:
        """The rarest values, of arguments that have a few dozen."""
        values: dict[tuple[str, str], int] = {}
        for tool, argument, _ in self._tried:
            values[tool, argument] = values.get((tool, argument), 0) + 1
        found = [
            RareValue(
                tool=tool,
                argument=argument,
                value=value,
                episodes=tried.count,
                successes=int((outcomes[list(tried.episodes)] > success_above).sum()),
                offered=tried.offered,
            )
            for (tool, argument, value), tried in self._tried.items()
            if tried.count < RARE and 1 < values[tool, argument] <= _MOST_VALUES
        ]
        return tuple(sorted(found, key=lambda one: (one.episodes, -one.offered))[:SHOWN])

    def _note(self, value: _Value) -> _Tried:
        if value in self._tried or len(self._tried) < _MOST_KEPT:
            return self._tried.setdefault(value, _Tried())
        return _Tried()


def _values(text: str) -> Iterator[_Value]:
    if ACTION_PREFIX not in text:  # no action: an answer in words
        return
    action = message_key(Message("assistant", text))[:_MOST_READ]
    if calls := _CALL.findall(action):
        for tool, arguments in calls:
            for name, value in _arguments(arguments).items():
                yield tool, name, str(value)[:_MOST_CHARACTERS]
        return
    verb, *words = _WORDS.findall(action) or [""]
    for word in words:
        yield verb, "", word[:_MOST_CHARACTERS]


def _arguments(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
