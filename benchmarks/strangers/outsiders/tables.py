"""Tables that are cleaned by tool calls, behind TRL's interface, with graded reward.

    qguide environment check benchmarks.strangers.outsiders.tables:Tables

Which method is right for a column depends on its type and its fault together, which only
`inspect` tells. A wrong method is taken like a right one, and a column is cleaned once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from benchmarks.strangers.mock_policy import Mistake, MockPolicy, Option, beliefs, tool
from benchmarks.strangers.worlds import shared_out, world_and_number
from qguide.qnet.types import History
from qguide.training.trajectory import arguments_of

COLUMNS = ("price", "city", "born", "code", "owner", "weight", "paid", "note")
TYPES = ("date", "amount", "name", "label")
FAULTS = ("has gaps", "has doubles", "mixes forms")
METHODS = ("drop", "fill", "trim", "convert", "merge")
_COLUMNS_OF_TABLE = 2


@dataclass(frozen=True)
class House:
    """Facts of one house of data.

    Attributes:
        method: for each pair "type, fault".
        tables: of each number, the columns with type and fault.
    """

    method: dict[str, str]
    tables: tuple[dict[str, tuple[str, str]], ...]


@lru_cache(maxsize=64)
def house(world: int) -> House:
    """The house of a world."""
    chance = Random(f"tables {world}")
    pairs = [f"{kind}, {fault}" for kind in TYPES for fault in FAULTS]
    tables = [
        {column: (chance.choice(TYPES), chance.choice(FAULTS)) for column in chance.sample(COLUMNS, _COLUMNS_OF_TABLE)}
        for _ in range(96)
    ]
    return House(shared_out(pairs, METHODS, chance), tuple(tables))


class Tables:
    """One table; the public methods are the tools."""

    system = "You clean tables. Inspect a column before you clean it, clean all, then submit."

    def reset(self, *, seed: int = 0) -> str:
        """Hand over the table of that number."""
        world, number = world_and_number(seed)
        facts = house(world)
        self._columns = facts.tables[number % len(facts.tables)]
        self._right = {c: facts.method[", ".join(own)] for c, own in self._columns.items()}
        self._cleaned, self._inspected, self.done = dict[str, str](), set[str](), False
        return f"Clean table {number} of columns {' and '.join(self._columns)}."

    def inspect(self, column: str) -> str:
        """Look at a column.

        Args:
            column: its name.
        """
        if column in COLUMNS and column not in self._columns:
            return f"There is no column {column}."
        kind, fault = self._columns[self._known(column)]
        self._inspected.add(column)
        return f"The column {column} is of type {kind} and {fault}."

    def clean(self, column: str, method: str) -> str:
        """Clean a column, which is done once.

        Args:
            column: its name.
            method: drop, fill, trim, convert or merge.
        """
        if method not in METHODS:
            raise ValueError(f"{method!r} is no method: {', '.join(METHODS)}")
        if self._known(column) in self._cleaned:
            return f"The column {column} was cleaned before."
        self._cleaned[column] = method if column in self._inspected else ""
        return f"The column {column} is cleaned by {method}."

    def submit(self) -> str:
        """Hand the table in, which ends the work."""
        self.done = True
        return "The table is handed in."

    def get_reward(self) -> float:
        """Share of the columns that were inspected and cleaned by the right method."""
        right = sum(self._cleaned.get(column) == own for column, own in self._right.items())
        return right / len(self._right) * (1.0 if self.done else 0.5)

    def _known(self, column: str) -> str:
        if column not in self._columns:
            raise ValueError(f"{column!r} is no column: {', '.join(self._columns)}")
        return column


def policy(world: int = 0) -> MockPolicy:
    """The mock that cleans the tables of a house."""
    return MockPolicy("tables-mock", _Beliefs(world).options)


class _Beliefs:
    """Shares by which the mock guesses what holds."""

    def __init__(self, world: int) -> None:
        facts, chance = house(world), Random(f"tables mock {world}")
        self._method = beliefs(facts.method, METHODS, chance)

    def options(self, history: History) -> list[Option]:
        """The replies in a state."""
        start, *turns = [message for message in history if message.role != "system"]
        columns = [column for column in COLUMNS if column in start.content]
        told = " ".join(message.content for message in turns)
        calls = [call for message in turns for call in message.tool_calls]
        left = [column for column in columns if f"{column} is cleaned" not in told]
        found = [
            tool("clean", {"column": columns[0], "method": "tidy"}, 0.04, "malformed"),
            tool("submit", {}, 0.05 if left else 0.9, "stop" if left else ""),
        ]
        if calls:
            found.append(tool(calls[-1].name, arguments_of(calls[-1]) or {}, 0.06, "repeat"))
        for column in left:
            seen = self._seen(column, told)
            known: Mistake = "skip" if seen else ""
            found.append(tool("inspect", {"column": column}, 0.05 if seen else 0.4, known))
            found += self._cleans(column, seen)
        return found

    def _seen(self, column: str, told: str) -> str:
        """Type and fault of a column; "" if it was not inspected."""
        pairs = ((kind, fault) for kind in TYPES for fault in FAULTS)
        said = f"The column {column} is of type"
        return next((f"{k}, {f}" for k, f in pairs if f"{said} {k} and {f}" in told), "")

    def _cleans(self, column: str, seen: str) -> Iterator[Option]:
        shares = self._method.get(seen) or dict.fromkeys(METHODS, 1 / len(METHODS))
        for method, share in shares.items():
            weight = (0.5 if seen else 0.08) * share
            kind: Mistake = "guess" if seen else "rule"
            yield tool("clean", {"column": column, "method": method}, weight, kind)
