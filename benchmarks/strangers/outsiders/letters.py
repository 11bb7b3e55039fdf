"""Letters sorted by topic, tier and desk, behind Gymnasium's interface; replies in `<action>` tags.

    qguide environment check benchmarks.strangers.outsiders.letters:Letters --set reply=text \
        --harmless "<action>wait</action>"

The topic is told by one sentence of the letter, the tier by the customer's file, and both together
decide the desk; the topic alone decides the priority. Long instructions list all values.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from random import Random
from typing import Any

from benchmarks.strangers.mock_policy import Mistake, MockPolicy, Option, beliefs, named
from benchmarks.strangers.worlds import in_turns, shared_out, world_and_number
from qguide.qnet.types import History, Message

SENDERS = ("Abel", "Brit", "Cora", "Dirk", "Elsa", "Finn", "Gerd", "Hilda", "Ivo", "Jutta")
TIERS = ("basic", "plus", "prime")
DESKS = ("accounts", "claims", "technics", "contracts", "care")
PRIORITIES = ("low", "normal", "high")
TOPICS = {
    "invoice": ("You charged me twice in May", "The sum on my bill is wrong"),
    "outage": ("Nothing has worked since Monday", "The line is dead again"),
    "moving": ("We shall live in another street soon", "Please take down my new address"),
    "ending": ("I want to leave at the end of the year", "Kindly end our contract"),
}
OTHER = (
    "I have been with you for years",
    "My neighbour says the same",
    "I wrote to you before and had no answer",
    "Thank you for the calendar",
)
MOST_ACTIONS = 8
SYSTEM = (
    "You sort the letters of a utility. Read the letter, and look up the tier of its sender in "
    "the file: basic, plus or prime. Then set a priority, which is low, normal or high, route the "
    "letter to a desk, which is accounts, claims, technics, contracts or care, and send it. Never "
    "route a letter before you have looked up its sender. Say briefly what you think, and end with "
    "one of <action>read</action>, <action>file</action>, <action>priority X</action>, "
    "<action>route X</action>, <action>wait</action> and <action>send</action>."
)
_TAGGED = re.compile(r"<action>([^<]*)</action>\s*$")


@dataclass(frozen=True)
class Office:
    """Facts of one office.

    Attributes:
        tier: of each sender.
        desk: for each pair "topic, tier".
        priority: for each topic.
        letters: sender, topic and wording, in the order of their numbers.
    """

    tier: dict[str, str]
    desk: dict[str, str]
    priority: dict[str, str]
    letters: tuple[tuple[str, str, int], ...]


@lru_cache(maxsize=64)
def office(world: int) -> Office:
    """The office of a world."""
    chance = Random(f"office {world}")
    facts = (
        shared_out(SENDERS, TIERS, chance),
        shared_out([f"{t}, {tier}" for t in TOPICS for tier in TIERS], DESKS, chance),
        shared_out(tuple(TOPICS), PRIORITIES, chance),
    )
    letters = in_turns(list(product(SENDERS, TOPICS)), 2, chance)
    return Office(*facts, tuple((*letter, wording) for letter, wording in letters))


class Letters:
    """One letter; see Gymnasium's `Env`."""

    system = SYSTEM

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Hand over the letter of that number."""
        world, number = world_and_number(seed or 0)
        self.facts = office(world)
        self.sender, self.topic, wording = self.facts.letters[number % len(self.facts.letters)]
        chance = Random(f"letter {seed}")
        sentences = [TOPICS[self.topic][wording], *chance.sample(OTHER, 2)]
        chance.shuffle(sentences)
        self.text, self.desk, self.priority = ". ".join(sentences), "", ""
        self.filed, self.taken = False, 0
        return f"Letter {number} has come from {self.sender}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action; sent letters are worth .6 for the desk and .4 for the priority."""
        self.taken += 1
        said = _TAGGED.search(action)
        verb, _, value = (said[1] if said else "").partition(" ")
        answer, over = self._act(verb, value), verb == "send" and not value
        reward = self._worth() if over else 0.0
        cut = not over and self.taken == MOST_ACTIONS
        return answer or "That is no action.", reward, over, cut, {"valid": bool(answer)}

    def _act(self, verb: str, value: str) -> str:
        """Answer to an action; "" if it means nothing."""
        match verb:
            case "read" if not value:
                return f"Letter: {self.text}. Yours, {self.sender}."
            case "file" if not value:
                self.filed = True
                return f"File: {self.sender} is a {self.facts.tier[self.sender]} customer."
            case "priority" if value in PRIORITIES:
                self.priority = value
                return f"The priority is {value}."
            case "route" if value in DESKS:
                self.desk = self.desk or value
                return f"The letter lies at {self.desk}."
            case "wait" | "send" if not value:
                return "You wait." if verb == "wait" else "The letter is on its way."
        return ""

    def _worth(self) -> float:
        pair = f"{self.topic}, {self.facts.tier[self.sender]}"
        routed = 0.6 * (self.desk == self.facts.desk[pair]) * (1.0 if self.filed else 0.5)
        return routed + 0.4 * (self.priority == self.facts.priority[self.topic])


def policy(world: int = 0) -> MockPolicy:
    """The mock that sorts the letters of an office."""
    return MockPolicy("letters-mock", _Beliefs(world).options)


def _act(action: str, weight: float, mistake: Mistake = "") -> Option:
    return Option(Message("assistant", f"I go on.\n<action>{action}</action>"), weight, mistake)


class _Beliefs:
    """Shares by which the mock guesses what holds."""

    def __init__(self, world: int) -> None:
        facts, chance = office(world), Random(f"office mock {world}")
        self._desk = beliefs(facts.desk, DESKS, chance)
        self._priority = beliefs(facts.priority, PRIORITIES, chance)

    def options(self, history: History) -> list[Option]:
        """The replies in a state."""
        turns = [message for message in history if message.role != "system"][1:]
        told = " ".join(message.content for message in turns[1::2])
        topic = named(TOPICS, told)
        tier = next((tier for tier in TIERS if f"a {tier} customer" in told), "")
        routed, rated = "lies at" in told, "priority is" in told
        ready = bool(routed and rated)
        found = [
            Option(Message("assistant", "I shall sort it soon."), 0.04, "malformed"),
            _act("wait", 0.04, "skip"),
            _act("send", 0.8 if ready else 0.05, "" if ready else "stop"),
            _act("read", 0.04 if topic else 0.6, "repeat" if topic else ""),
            _act("file", 0.04 if tier else 0.4, "repeat" if tier else ""),
        ]
        if not routed:
            found += self._routes(topic, tier)
        for value, share in (self._priority.get(topic) or _even(PRIORITIES)).items():
            weight = 0.02 if rated else 0.4 if topic else 0.1
            found.append(_act(f"priority {value}", weight * share, "guess" if topic else "skip"))
        return found

    def _routes(self, topic: str, tier: str) -> Iterator[Option]:
        weight = 0.5 if topic and tier else 0.12
        for desk, share in (self._desk.get(f"{topic}, {tier}") or _even(DESKS)).items():
            kind: Mistake = "rule" if not tier else "guess" if topic else "skip"
            yield _act(f"route {desk}", weight * share, kind)


def _even(values: tuple[str, ...]) -> dict[str, float]:
    return dict.fromkeys(values, 1 / len(values))
