"""Rooms that are booked on long pages, behind Gymnasium's interface; replies are JSON objects.

    qguide environment check benchmarks.strangers.outsiders.booking:Booking --set reply=text \
        --harmless '{"action": "wait"}'

What a guest wishes is met by one feature of a house, which its page tells among much else; the
search tells prices alone.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from random import Random
from typing import Any

from benchmarks.strangers.mock_policy import Mistake, MockPolicy, Option, beliefs, shares
from benchmarks.strangers.worlds import in_turns, shared_out, world_and_number
from qguide.qnet.types import History, Message

TOWNS = ("Arlen", "Bromma", "Corvo", "Delden", "Estell")
WISHES = ("sleep", "work", "children", "dogs", "swimming", "festivals")
FEATURES = ("a walled court", "a glass hall", "a mill stream", "an old stable")
HOUSES = ("Anchor", "Bell", "Crown", "Dolphin", "Eagle", "Falcon", "Griffin", "Heron")
BUDGETS = (90, 120, 150)
FILLER = (
    "Breakfast is served from seven in the parlour, and the bread is baked next door",
    "The station is a walk of twelve minutes, most of it along the market",
    "All floors were renewed two years ago by a firm of the region",
    "Bicycles are lent at the desk for a small fee, which includes a map",
    "Guests praise the staff, who speak four languages and know the walks",
    "Linen is changed every third day, and towels on request",
    "The lift stops at every floor but the attic, where two rooms have a slanted roof",
    "Tax of the town is paid on arrival and is not part of the price",
    "A car is parked in the lane behind, as long as there is space",
    "The kitchen closes at ten, and the bar when the last guest leaves",
)
MOST_ACTIONS = 8
SYSTEM = (
    "You book rooms for guests of an agency. Search a town for its houses and their prices, open "
    "the pages of houses, and book one that has what the guest needs. Never book above the budget. "
    'Reply with one JSON object: {"thought": "…", "action": "search", "town": "…"}, or "action": '
    '"open" or "book" with a "house", or "action": "wait" or "leave". A page tells what a house '
    "has and much that does not matter. A booking cannot be changed, so read before you book."
)


@dataclass(frozen=True)
class Region:
    """Facts of one region.

    Attributes:
        feature: that meets each wish.
        houses: of each town, its houses with their feature and price.
        guests: town, wish and budget, in the order of their numbers.
    """

    feature: dict[str, str]
    houses: dict[str, dict[str, tuple[str, int]]]
    guests: tuple[tuple[str, str, int], ...]


@lru_cache(maxsize=64)
def region(world: int) -> Region:
    """The region of a world."""
    chance = Random(f"region {world}")
    houses = {}
    for town in TOWNS:
        named = chance.sample(HOUSES, 6)
        kinds = [*FEATURES, *chance.sample(FEATURES, 2)]
        chance.shuffle(kinds)
        houses[town] = {
            house: (kind, chance.choice((70, 85, 110, 140))) for house, kind in zip(named, kinds, strict=True)
        }
    feature = shared_out(WISHES, FEATURES, chance)
    guests = in_turns(list(product(TOWNS, WISHES)), len(BUDGETS), chance)
    return Region(feature, houses, tuple((*guest, BUDGETS[i]) for guest, i in guests))


class Booking:
    """One guest; see Gymnasium's `Env`."""

    system = SYSTEM

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Bring the guest of that number."""
        world, number = world_and_number(seed or 0)
        self.facts = region(world)
        self.town, self.wish, self.budget = self.facts.guests[number % len(self.facts.guests)]
        self.worth, self.taken = 0.0, 0
        return (f"A guest comes to {self.town} for {self.wish}, and pays {self.budget} at most.", {})

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action; the reward comes with the booking."""
        self.taken += 1
        said = acting(action)
        answer, over = self._act(said), said.get("action") in ("book", "leave")
        over = over and bool(answer)
        cut = not over and self.taken == MOST_ACTIONS
        return answer or "That is no action.", self.worth, over, cut, {"valid": bool(answer)}

    def _act(self, said: Mapping[str, str]) -> str:
        """Answer to an action; "" if it means nothing."""
        houses = self.facts.houses[self.town]
        house = said.get("house", "")
        match said.get("action"):
            case "search" if said.get("town") in TOWNS:
                found = self.facts.houses[said["town"]].items()
                return "\n".join(f"The {h} asks {price}." for h, (_, price) in found)
            case "open" if house in houses:
                return _page(house, houses[house][0])
            case "book" if house in houses:
                feature, price = houses[house]
                right = feature == self.facts.feature[self.wish]
                self.worth = (1.0 if right else 0.2) * (1.0 if price <= self.budget else 0.4)
                return f"A room of the {house} is booked."
            case "wait" | "leave":
                return "You wait." if said["action"] == "wait" else "The guest is on his own."
        return ""


def _page(house: str, feature: str) -> str:
    """The page of a house: one sentence that matters, among many."""
    chance = Random(f"page {house} {feature}")
    sentences = [*chance.sample(FILLER, 8), f"The house is known for {feature}"]
    chance.shuffle(sentences)
    return f"Page of the {house}\n{'. '.join(sentences)}."


def acting(reply: str) -> dict[str, str]:
    """The fields of a reply; none where it is no JSON object of texts."""
    try:
        fields = json.loads(reply)
    except ValueError:
        return {}
    texts = isinstance(fields, dict) and all(isinstance(value, str) for value in fields.values())
    return fields if texts else {}


def policy(world: int = 0) -> MockPolicy:
    """The mock that books the rooms of a region."""
    return MockPolicy("booking-mock", _Beliefs(world).options)


def _json(weight: float, mistake: Mistake = "", **fields: str) -> Option:
    reply = json.dumps({"thought": "This should do.", **fields})
    return Option(Message("assistant", reply), weight, mistake)


class _Beliefs:
    """Shares by which the mock guesses what meets a wish; it likes some houses by their names."""

    def __init__(self, world: int) -> None:
        facts, chance = region(world), Random(f"region mock {world}")
        self._feature = beliefs(facts.feature, FEATURES, chance)
        self._liked = {house: chance.choice((1.0, 1.0, 3.0)) for house in HOUSES}

    def options(self, history: History) -> list[Option]:
        """The replies in a state."""
        start, *turns = [message for message in history if message.role != "system"]
        guest = re.search(r"to (\w+) for (\w+), and pays (\d+)", start.content)
        assert guest is not None
        town, wish, budget = guest.groups()
        told = "\n".join(message.content for message in turns[1::2])
        prices = {h: int(price) for h, price in re.findall(r"The (\w+) asks (\d+)\.", told)}
        pages = dict(re.findall(r"Page of the (\w+)\n.*known for ([a-z ]+)", told))
        found = [
            Option(Message("assistant", f"I look for a room in {town}."), 0.04, "malformed"),
            _json(0.03, "skip", action="wait"),
            _json(0.03, "stop", action="leave"),
            _json(0.04 if prices else 0.9, "repeat" if prices else "", action="search", town=town),
        ]
        for house, price in prices.items():
            dear: Mistake = "rule" if price > int(budget) else ""
            fits = self._liked[house] * (0.6 if dear else 1.0)
            weight = 0.02 if house in pages else 0.1 / (1 + len(pages))
            again: Mistake = "repeat" if house in pages else ""
            found.append(_json(weight * fits, again, action="open", house=house))
        return found + list(self._books(wish, prices, pages, int(budget)))

    def _books(self, wish: str, prices: Mapping[str, int], pages: Mapping[str, str], budget: int) -> Iterator[Option]:
        liking = {
            house: (4 * self._feature[wish][pages[house]] if house in pages else 0.1) * (0.5 if price > budget else 1.0)
            for house, price in prices.items()
        }
        for house, share in shares(liking).items() if liking else ():
            kind: Mistake = "skip" if house not in pages else "guess"
            kind = "rule" if prices[house] > budget else kind
            yield _json((0.1 + 0.25 * len(pages)) * share, kind, action="book", house=house)
