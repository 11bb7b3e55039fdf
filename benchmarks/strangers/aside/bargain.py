"""A sale by haggling, behind Gymnasium's interface: words of a buyer, and the price as reward.

    qguide environment check benchmarks.strangers.aside.bargain:Bargain --harmless wait

What a buyer would pay at most depends on the goods; which of their merits raises that, and how many
refusals the buyer bears, on who the buyer is. A price that is asked once is not raised: that is
told, and costs patience. The mock that sells knows half of this, and is careless.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from random import Random
from typing import Any

from benchmarks.strangers.mock_policy import Mistake, MockPolicy, Option, beliefs, shares, text
from benchmarks.strangers.worlds import shared_out, world_and_number
from qguide.qnet.types import History
from qguide.training.trajectory import parse_action

GOODS = ("carpet", "clock", "saddle", "mirror", "violin", "globe", "chest", "lute")
BUYERS = ("captain", "widow", "student", "abbot", "duke", "smith", "actor", "judge")
MERITS = ("age", "craft", "beauty", "comfort")
LIMITS = ("3", "4", "5", "6")
PATIENCE = ("2", "3", "4")
MOST_ACTIONS = 9
HIGHEST = 8
HINT = "Actions: ask PRICE (1 to 8), praise MERIT, wait, sell, stop."


@dataclass(frozen=True)
class Market:
    """Facts of one market.

    Attributes:
        limit: for each of the goods.
        merit, patience: for each buyer.
        sales: pairs of goods and buyer, in the order of their numbers.
    """

    limit: dict[str, str]
    merit: dict[str, str]
    patience: dict[str, str]
    sales: tuple[tuple[str, str], ...]


@lru_cache(maxsize=64)
def market(world: int) -> Market:
    """The market of a world."""
    chance = Random(f"market {world}")
    sales = list(product(GOODS, BUYERS))
    facts = (
        shared_out(GOODS, LIMITS, chance),
        shared_out(BUYERS, MERITS, chance),
        shared_out(BUYERS, PATIENCE, chance),
    )
    chance.shuffle(sales)
    return Market(*facts, tuple(sales))


class Bargain:
    """One sale; see Gymnasium's `Env`."""

    system = f"You sell at a market. Never raise a price. {HINT} Write a line `Action: …`."

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin the sale of that number."""
        world, number = world_and_number(seed or 0)
        facts = market(world)
        self.goods, self.buyer = facts.sales[number % len(facts.sales)]
        self.limit, self.patience = int(facts.limit[self.goods]), int(facts.patience[self.buyer])
        self.merit, self.offer, self.asked = facts.merit[self.buyer], 1, HIGHEST
        self.praised, self.taken, self.price, self.over = set[str](), 0, 0, False
        return f"A {self.buyer} looks at your {self.goods} and offers 1. {HINT}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action; the reward is an eighth of the price at which it is sold."""
        self.taken += 1
        said = self._act(*action.partition(" ")[::2])
        if self.patience <= 0 and not self.over:
            said, self.over = "The buyer has enough and leaves.", True
        cut = not self.over and self.taken == MOST_ACTIONS
        reward = self.price / HIGHEST
        return said or f"That is no action. {HINT}", reward, self.over, cut, {"valid": bool(said)}

    def _act(self, verb: str, thing: str) -> str:
        """Effect of an action in words; "" if it means nothing."""
        match verb:
            case "wait" if not thing:
                return "The buyer waits, too."
            case "stop" if not thing:
                self.over = True
                return "You pack up."
            case "sell" if not thing:
                self.price, self.over = self.offer, True
                return f"Sold for {self.offer}."
            case "praise" if thing in MERITS:
                return self._praise(thing)
            case "ask" if thing.isdigit() and 1 <= int(thing) <= HIGHEST:
                return self._ask(int(thing))
        return ""

    def _praise(self, merit: str) -> str:
        if merit != self.merit or merit in self.praised:
            self.patience -= 1
            return "The buyer yawns."
        self.praised.add(merit)
        self.limit += 2
        return f"The buyer nods at the {merit}."

    def _ask(self, price: int) -> str:
        if price > self.asked:
            self.patience -= 2
            return "The buyer frowns: you asked for less before."
        self.asked = price
        if price <= self.limit:
            self.price, self.over = price, True
            return f"The buyer pays {price}."
        self.patience -= 1
        self.offer = max(self.offer, self.limit - 2)
        far = "laughs" if price > self.limit + 2 else "hesitates"
        return f"The buyer {far} and offers {self.offer}."


def policy(world: int = 0) -> MockPolicy:
    """The mock that sells in the market of a world."""
    return MockPolicy("market-mock", _Beliefs(world).options)


class _Beliefs:
    """Shares by which the mock guesses what holds."""

    def __init__(self, world: int) -> None:
        facts, chance = market(world), Random(f"market mock {world}")
        self._limit = beliefs(facts.limit, LIMITS, chance)
        self._merit = beliefs(facts.merit, MERITS, chance)

    def options(self, history: History) -> list[Option]:
        """The replies in a state."""
        start, *turns = [message for message in history if message.role != "system"]
        sale = re.search(r"A (\w+) looks at your (\w+)", start.content)
        assert sale is not None
        buyer, goods = sale.groups()
        told = " ".join(message.content for message in turns[1::2])
        actions = [parse_action(message.content) for message in turns[::2]]
        asked = [int(a[4:]) for a in actions if re.fullmatch(r"ask \d", a)]
        offer = max([1, *(int(n) for n in re.findall(r"offers (\d)", told))])
        failed = bool(turns) and not turns[-1].content.startswith("The buyer nods")
        found = [
            text(f"offer the {goods}", 0.03, "malformed"),
            text("stop", 0.03, "stop"),
            text("wait", 0.06, "skip"),
            text("sell", 0.1 + 0.05 * offer * len(asked), "skip" if offer < 3 else ""),
        ]
        if failed:
            found.append(text(actions[-1], 0.1, "repeat"))
        if "nods" not in told:
            found += self._praises(buyer, set(actions))
        return found + list(self._asks(goods, min([HIGHEST, *asked]), "nods" in told))

    def _praises(self, buyer: str, done: set[str]) -> Iterator[Option]:
        wanted = {m: s for m, s in self._merit[buyer].items() if f"praise {m}" not in done}
        for merit, share in shares(wanted or {"age": 1.0}).items():
            yield text(f"praise {merit}", 0.4 * share, "guess")

    def _asks(self, goods: str, least: int, praised: bool) -> Iterator[Option]:
        for limit, share in self._limit[goods].items():
            price = int(limit) + 2 * praised
            kind: Mistake = "rule" if price > least else "guess"
            yield text(f"ask {price}", 0.45 * share * (0.3 if price > least else 1.0), kind)
            yield text(f"ask {min(price + 1, HIGHEST)}", 0.15 * share, kind)
