"""A game of numbered choices, behind Gymnasium's interface: a reply is a number and nothing else.

    qguide environment check benchmarks.strangers.outsiders.road:Road --set reply=text --harmless 0

On a road of three meetings each creature, in its mood, gives way to one approach. The list of
choices is in another order at every meeting, so a number says nothing without the text beside it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

from benchmarks.strangers.mock_policy import Mistake, MockPolicy, Option, beliefs
from benchmarks.strangers.worlds import shared_out, world_and_number
from qguide.qnet.types import History, Message

CREATURES = ("troll", "witch", "knight", "bear", "ghost", "giant")
MOODS = ("hungry", "angry", "sleepy")
APPROACHES = ("offer bread", "sing a song", "draw the sword", "sneak past", "tell the truth")
MEETINGS = 3
MOST_MISTAKES = 2
MOST_ACTIONS = 9
SYSTEM = (
    "You walk a road with three meetings. At each one of the choices leads on, and two failures "
    "end the walk. Never draw the sword before one who wears the king's ring. Reply with the "
    "number of a choice and nothing else; 0 looks around."
)
_CHOICE = re.compile(r"^(\d)\. (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Land:
    """Facts of one land.

    Attributes:
        approach: that leads past each "creature, mood".
        roads: of each number, the meetings, and the numbers of those who wear the ring.
    """

    approach: dict[str, str]
    roads: tuple[tuple[tuple[str, ...], frozenset[int]], ...]


@lru_cache(maxsize=64)
def land(world: int) -> Land:
    """The land of a world."""
    chance = Random(f"land {world}")
    pairs = [f"{creature}, {mood}" for creature in CREATURES for mood in MOODS]
    roads = tuple(
        (tuple(chance.sample(pairs, MEETINGS)), frozenset(i for i in range(MEETINGS) if chance.random() < 0.3))
        for _ in range(84)
    )
    return Land(shared_out(pairs, APPROACHES, chance), roads)


class Road:
    """One walk; see Gymnasium's `Env`."""

    system = SYSTEM

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin the walk of that number."""
        world, self.number = world_and_number(seed or 0)
        self.land = land(world)
        self.meetings, self.rings = self.land.roads[self.number % len(self.land.roads)]
        self.passed, self.failed, self.taken, self.over = 0, 0, 0, False
        return f"Walk {self.number} begins.\n{self._scene()}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a choice; each meeting that is passed is worth a third."""
        before = self.passed
        self.taken += 1
        choices = self._choices()
        number = int(action) - 1 if re.fullmatch(r"\d", action) else len(choices)
        valid = number < len(choices)
        said = self._take(choices[number]) if number >= 0 and valid else ""
        text = said or ("You look around." if valid else "That is no number of a choice.")
        cut = not self.over and self.taken == MOST_ACTIONS
        shown = text if self.over else f"{text}\n{self._scene()}"
        return shown, (self.passed - before) / MEETINGS, self.over, cut, {"valid": valid}

    def _scene(self) -> str:
        creature, mood = self.meetings[self.passed].split(", ")
        ring = " It wears the king's ring." if self.passed in self.rings else ""
        listed = "\n".join(f"{i}. {text}" for i, text in enumerate(self._choices(), 1))
        return f"A {creature} stands in the way and looks {mood}.{ring}\n{listed}"

    def _choices(self) -> list[str]:
        """The choices of the meeting, in an order of its own."""
        chance = Random(f"choices {self.number} {self.passed} {self.failed}")
        return chance.sample([*APPROACHES, "go home"], len(APPROACHES) + 1)

    def _take(self, choice: str) -> str:
        """Effect of a choice."""
        meeting = self.meetings[self.passed]
        rash = choice == "draw the sword" and self.passed in self.rings
        if choice == "go home" or rash:
            self.over = True
            return "The king hears of it." if rash else "You turn back."
        if choice == self.land.approach[meeting]:
            self.passed += 1
            self.over = self.passed == MEETINGS
            return "It lets you pass."
        self.failed += 1
        self.over = self.failed == MOST_MISTAKES
        return f"You {choice}, and it does not move."


def policy(world: int = 0) -> MockPolicy:
    """The mock that walks the roads of a land."""
    return MockPolicy("road-mock", _Beliefs(world).options)


def _say(text: str, weight: float, mistake: Mistake = "") -> Option:
    return Option(Message("assistant", text), weight, mistake)


class _Beliefs:
    """Shares by which the mock guesses which approach leads past."""

    def __init__(self, world: int) -> None:
        facts, chance = land(world), Random(f"land mock {world}")
        self._right = facts.approach
        self._approach = beliefs(facts.approach, APPROACHES, chance)

    def options(self, history: History) -> list[Option]:
        """The replies in a state."""
        shown = [message.content for message in history if message.role == "user"]
        found = [_say("I take the first one", 0.04, "malformed"), _say("0", 0.04, "skip")]
        return found + list(self._choices(shown))

    def _choices(self, shown: list[str]) -> Iterator[Option]:
        met = re.search(r"A (\w+) stands in the way and looks (\w+)", shown[-1])
        assert met is not None
        meeting = ", ".join(met.groups())
        shares = self._approach[meeting]
        failed = re.findall(rf"You ([a-z ]+), and it does not move\.\nA {met[1]}", shown[-1])
        for number, choice in _CHOICE.findall(shown[-1]):
            if choice == "go home":
                yield _say(number, 0.04, "stop")
                continue
            ring = choice == "draw the sword" and "king's ring" in shown[-1]
            kind: Mistake = "repeat" if choice in failed else "rule" if ring else "guess"
            kind = "" if choice == self._right[meeting] else kind
            kept = 0.4 if choice in failed or ring else 1.0
            yield _say(number, shares[choice] * kept, kind)
