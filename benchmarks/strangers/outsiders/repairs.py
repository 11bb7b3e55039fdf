"""Repairs decided by readings, behind Gymnasium's interface: numbers, and what is much for whom.

    qguide environment check benchmarks.strangers.outsiders.repairs:Repairs --harmless wait

One gauge of a machine is beyond the machine's limit, which nobody tells. The gauge decides which
part has to be replaced, after the machine was shut.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from random import Random
from typing import Any

from benchmarks.strangers.mock_policy import Mistake, MockPolicy, Option, beliefs, shares, text
from benchmarks.strangers.worlds import in_turns, shared_out, world_and_number
from qguide.qnet.types import History
from qguide.training.trajectory import parse_action

MACHINES = ("pump", "press", "oven", "mill", "lathe", "crane")
GAUGES = ("heat", "pressure", "noise", "current")
PARTS = ("valve", "belt", "filter", "bearing")
LIMITS = (20, 35, 50, 70, 95)
MOST_ACTIONS = 9
HINT = "Actions: read GAUGE, shut, replace PART, start, wait."
_READING = re.compile(r"The (\w+) is (\d+)\.")


@dataclass(frozen=True)
class Hall:
    """Facts of one hall of machines.

    Attributes:
        limit: of each pair "machine, gauge".
        part: for each gauge.
        faults: machine and gauge, in the order of their numbers.
    """

    limit: dict[str, str]
    part: dict[str, str]
    faults: tuple[tuple[str, str], ...]


@lru_cache(maxsize=64)
def hall(world: int) -> Hall:
    """The hall of a world."""
    chance = Random(f"hall {world}")
    pairs = [f"{machine}, {gauge}" for machine in MACHINES for gauge in GAUGES]
    facts = (shared_out(pairs, tuple(map(str, LIMITS)), chance), shared_out(GAUGES, PARTS, chance))
    faults = in_turns(list(product(MACHINES, GAUGES)), 4, chance)
    return Hall(*facts, tuple(fault for fault, _ in faults))


class Repairs:
    """One machine; see Gymnasium's `Env`."""

    system = (
        f"You repair machines. One gauge is out of order, and tells which part is broken. Shut a "
        f"machine before you replace a part of it. {HINT} Write a thought, then `Action: …`."
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Bring the machine of that number."""
        world, number = world_and_number(seed or 0)
        facts = hall(world)
        machine, fault = facts.faults[number % len(facts.faults)]
        chance = Random(f"fault {seed}")
        self.readings = {
            gauge: round(
                int(facts.limit[f"{machine}, {gauge}"])
                * (chance.uniform(1.1, 1.5) if gauge == fault else chance.uniform(0.5, 0.95))
            )
            for gauge in GAUGES
        }
        self.broken, self.replaced = facts.part[fault], list[str]()
        self.shut, self.careless, self.taken = False, False, 0
        return f"The {machine} of order {number} does not run well. {HINT}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action; the reward comes when the machine is started again."""
        self.taken += 1
        verb, _, thing = action.partition(" ")
        said, over = self._act(verb, thing), action == "start"
        reward = self._worth() if over else 0.0
        cut = not over and self.taken == MOST_ACTIONS
        return said or f"That is no action. {HINT}", reward, over, cut, {"valid": bool(said)}

    def _act(self, verb: str, thing: str) -> str:
        """Answer to an action; "" if it means nothing."""
        match verb:
            case "read" if thing in self.readings:
                return f"The {thing} is {self.readings[thing]}."
            case "replace" if thing in PARTS:
                self.careless |= not self.shut
                self.replaced.append(thing)
                return f"There is a new {thing} in it."
            case "shut" | "start" | "wait" if not thing:
                self.shut |= verb == "shut"
                return {"shut": "It stands still.", "start": "It runs."}.get(verb, "You wait.")
        return ""

    def _worth(self) -> float:
        """1 for the broken part alone, .4 among others, half of it from a running machine."""
        if self.broken not in self.replaced:
            return 0.0
        return (1.0 if set(self.replaced) == {self.broken} else 0.4) / (1 + self.careless)


def policy(world: int = 0) -> MockPolicy:
    """The mock that repairs the machines of a hall."""
    return MockPolicy("repairs-mock", _Beliefs(world).options, ("Let me see.", "I go on."))


class _Beliefs:
    """Shares by which the mock guesses what holds.

    It takes the largest reading for the one that is out of order, more or less.
    """

    def __init__(self, world: int) -> None:
        facts, chance = hall(world), Random(f"hall mock {world}")
        self._part = beliefs(facts.part, PARTS, chance)
        self._liked = beliefs(dict.fromkeys(MACHINES, "heat"), GAUGES, chance, known=0, misled=1)

    def options(self, history: History) -> list[Option]:
        """The replies in a state."""
        start, *turns = [message for message in history if message.role != "system"]
        machine = start.content.split()[1]
        told = " ".join(message.content for message in turns[1::2])
        readings = {gauge: int(n) for gauge, n in _READING.findall(told)}
        last = parse_action(turns[-2].content) if turns else ""
        shut, repaired = "stands still" in told, "There is a new" in told
        found = [
            text(f"fix the {machine}", 0.04, "malformed"),
            text("wait", 0.03, "skip"),
            text("shut", 0.03 if shut else 0.25 if readings else 0.12, "skip" if shut else ""),
            text("start", 0.9 if repaired else 0.05, "" if repaired else "stop"),
        ]
        if last:
            found.append(text(last, 0.06, "repeat"))
        for gauge, share in self._liked[machine].items():
            weight = 0.04 if gauge in readings else 0.9 / (1 + len(readings))
            found.append(text(f"read {gauge}", weight * share, "repeat" if weight < 0.1 else ""))
        return found + list(self._replaces(readings, shut=shut, repaired=repaired))

    def _replaces(self, readings: dict[str, int], *, shut: bool, repaired: bool) -> Iterator[Option]:
        blamed = shares({gauge: float(n) ** 2 for gauge, n in readings.items()})
        weight = (0.1 if repaired else 0.2 * len(readings)) * (1.0 if shut else 0.4)
        for gauge, share in (blamed or dict.fromkeys(GAUGES, 0.25)).items():
            for part, believed in self._part[gauge].items():
                kind: Mistake = "rule" if not shut else "guess" if blamed else "skip"
                yield text(f"replace {part}", (weight or 0.05) * share * believed, kind)
