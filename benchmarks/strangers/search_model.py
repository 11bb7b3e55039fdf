"""Mock LLM of the library: it can read, but it mixes up sentences and forgets the rule."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from benchmarks.strangers.library import OTHERS, PEOPLE, SOURCES, TOPICS, TOWNS, YEARS
from benchmarks.strangers.mock_policy import Mistake, MockPolicy, Option, shares, text
from qguide.qnet.types import History
from qguide.training.trajectory import parse_action

_THOUGHTS: Final = ("Let me see.", "This should help.", "I go on.")
_RULE = re.compile(r"only the (\w+) of a town")
_TITLE = re.compile(r"^- (\w+ of \w+):", re.MULTILINE)
_NAMES = re.compile("|".join(PEOPLE))
_YEAR = re.compile(r"\b1[5-8]\d\d\b")


@dataclass(frozen=True)
class _State:
    """The state of a question as the mock reads it.

    Attributes:
        listed: titles that were found.
        opened: texts of the documents that were opened, by their titles.
        last: the last action, or "".
    """

    question: str
    town: str
    topic: str
    source: str
    listed: tuple[str, ...]
    opened: dict[str, str]
    last: str


def policy(world: int = 0) -> MockPolicy:
    """The mock that searches the library of a world."""
    return MockPolicy("library-mock", _Habits(world).options, _THOUGHTS)


class _Habits:
    """Habits of the mock, which differ from world to world.

    Attributes:
        favourite: of each topic, the kind of document that it likes to open.
        likely: of each topic, texts of sentences in which it looks for the answer. One of the two
            wordings is always among them, and so is a sentence on something else.
    """

    def __init__(self, world: int) -> None:
        chance = Random(f"library mock {world}")
        self.favourite = {topic: chance.choice(SOURCES) for topic in TOPICS}
        self.likely = {topic: _misread(topic, chance) for topic in TOPICS}

    def options(self, history: History) -> list[Option]:
        """The replies in a state."""
        state = _read(history)
        found = list(self._mistakes(state))
        of_town = [title for title in state.listed if title.endswith(state.town)]
        fresh = [title for title in of_town if title not in state.opened]
        title, read = (list(state.opened.items()) or [("", "")])[-1]
        right = title.startswith(state.source)
        opens = 0.8 if not state.opened else 0.1 if right else 0.5
        if not of_town:
            found += self._searches(state, 0.75)
        elif fresh:
            found += self._opens(state, fresh, opens)
        if state.opened:
            kind: Mistake = "guess" if right else "rule"
            for value, share in self._guesses(state, read).items():
                found.append(text(f"answer[{value}]", 0.8 * share, kind))
        return found

    def _searches(self, state: _State, weight: float) -> Iterator[Option]:
        yield text(f"search[{state.town}]", weight * 0.4)
        yield text(f"search[{state.town} {state.topic}]", weight * 0.3)
        yield text(f"search[{state.topic}]", weight * 0.3, "skip")

    def _opens(self, state: _State, titles: list[str], weight: float) -> Iterator[Option]:
        """Open one of the titles; it may remember the rule, or follow its habit."""
        liked = {
            title: 1.0 + 2.0 * title.startswith(self.favourite[state.topic]) + 1.5 * title.startswith(state.source)
            for title in titles
        }
        for title, share in shares(liked).items():
            kind: Mistake = "" if title.startswith(state.source) else "rule"
            yield text(f"open[{title}]", weight * share, kind)

    def _guesses(self, state: _State, read: str) -> dict[str, float]:
        """Values in a document that may be the answer; those of likely sentences four times."""
        pattern = _NAMES if state.question.startswith("Who") else _YEAR
        weights: dict[str, float] = {}
        for sentence in read.split(". "):
            likely = any(part in sentence for part in self.likely[state.topic])
            for value in pattern.findall(sentence):
                weights[value] = 4.0 if likely else 1.0
        return shares(weights)

    def _mistakes(self, state: _State) -> Iterator[Option]:
        """Carelessness of every state."""
        yield text(f"look up {state.topic} in {state.town}", 0.04, "malformed")
        yield text("answer[unknown]", 0.03, "stop")
        if not state.opened:
            values = PEOPLE if state.question.startswith("Who") else YEARS
            yield text(f"answer[{values[len(state.town) * 2]}]", 0.04, "skip")
        if state.last:
            yield text(state.last, 0.05, "repeat")


def _misread(topic: str, chance: Random) -> tuple[str, ...]:
    """Beginnings of the sentences in which the mock looks for an answer."""
    values = TOPICS[topic].values
    others = [s for t in TOPICS.values() if t.values == values for s in t.sentences]
    others += [sentence for sentence, kind in OTHERS if kind == values]
    wordings = list(TOPICS[topic].sentences)
    wrong = chance.choice([sentence for sentence in others if sentence not in wordings])
    read = wordings if chance.random() < 0.4 else [chance.choice(wordings)]
    return tuple(sentence.partition("{")[0] for sentence in (*read, wrong))


def _read(history: History) -> _State:
    """The state that a history tells."""
    first, *turns = [message for message in history if message.role != "system"]
    rule = _RULE.search(first.content)
    question = first.content.removeprefix("Question: ").partition("?")[0]
    assert rule is not None
    listed: list[str] = []
    opened: dict[str, str] = {}
    for reply, answer in zip(turns[::2], turns[1::2], strict=True):
        action = parse_action(reply.content)
        listed += _TITLE.findall(answer.content)
        if action.startswith("open[") and answer.content.startswith(action[5:-1]):
            opened[action[5:-1]] = answer.content
    return _State(
        question,
        next(town for town in TOWNS if town in question),
        next(topic for topic in TOPICS if topic in question),
        rule[1].capitalize(),
        tuple(dict.fromkeys(listed)),
        opened,
        parse_action(turns[-2].content) if turns else "",
    )
