"""Mock LLM of the workshop: it can read, knows half of the recipes, and is careless."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from benchmarks.strangers.crafting import FORMS, MATERIALS, PARTS, PLACES, STATIONS, STORE, workshop
from benchmarks.strangers.mock_policy import Mistake, MockPolicy, Option, Weights, beliefs, shares, text
from qguide.qnet.types import History

_SCENE = re.compile(r"You are at the (\w+)\. You see ([^.]*)\. You carry ([^.]*)\.")
_ORDER = re.compile(r"Make a (\w+) (\w+)\.( Rule: soak)?")


@dataclass(frozen=True)
class _State:
    """The state of an order as the mock reads it.

    Attributes:
        been: places where it has been, so that it seldom looks there again.
        failed: the last action if it had no effect, else "".
    """

    material: str
    form: str
    soaks: bool
    here: str
    seen: frozenset[str]
    carried: frozenset[str]
    been: frozenset[str]
    failed: str


def policy(world: int = 0) -> MockPolicy:
    """The mock that works in the workshop of a world."""
    return MockPolicy("workshop-mock", _Beliefs(world).options)


class _Beliefs:
    """Shares by which the mock guesses each secret of its workshop."""

    def __init__(self, world: int) -> None:
        shop, chance = workshop(world), Random(f"workshop mock {world}")
        self.place = beliefs({m: shop.place[m] for m in MATERIALS}, PLACES, chance)
        self.station = beliefs(shop.station, STATIONS, chance)
        self.part = beliefs(shop.part, PARTS, chance)

    def options(self, history: History) -> list[Option]:
        """The replies in a state."""
        state = _read(history)
        carries, material = state.carried, state.material
        has_part = bool(carries & frozenset(PARTS))
        found = list(_mistakes(state))
        if f"worked {material}" in carries:
            found += self._part(state, 0.15 if has_part else 0.8)
            found += self._at_station(state, state.form, f"assemble {state.form}", 0.75, has_part)
        elif carries & {material, f"soaked {material}"}:
            dry = state.soaks and material in carries
            found += [text(f"soak {material}", 0.5)] if dry else []
            found += self._at_station(state, material, f"work {material}", 0.75, not dry)
            found += self._part(state, 0.1)
        else:
            found += self._fetch(state, {material: 0.85})
            found += self._part(state, 0.1)
            found.append(text(f"work {material}", 0.04, "skip"))
        return found

    def _part(self, state: _State, weight: float) -> Iterator[Option]:
        """Fetch one of the parts that the form may take."""
        wanted = {part: share for part, share in self.part[state.form].items() if part not in state.carried}
        yield from self._fetch(state, {p: weight * s for p, s in shares(wanted or {}).items()})

    def _fetch(self, state: _State, wanted: Weights) -> Iterator[Option]:
        """Gather what lies here, or go where it may lie."""
        for thing, weight in wanted.items():
            guess: Mistake = "guess" if thing in PARTS else ""
            if thing in state.seen:
                yield text(f"gather {thing}", weight, guess)
                continue
            if thing in PARTS:
                yield text(f"go {STORE}", weight)
                continue
            for place, share in _elsewhere(self.place[thing], state).items():
                yield text(f"go {place}", weight * share, "guess")

    def _at_station(self, state: _State, thing: str, action: str, weight: float, ready: bool) -> Iterator[Option]:
        """Act at the station where a thing may belong, or go there.

        Args:
            state: the order's.
            thing: a material or a form.
            action: to be taken there.
            weight: of all of it.
            ready: False if a step is left out that has to come before.
        """
        dry = action.startswith("work") and not ready
        kind: Mistake = "guess" if ready else "rule" if dry else "skip"
        weight = weight if ready else weight * (0.7 if dry else 0.25)
        believed = self.station[thing]
        if state.here in STATIONS and state.failed != action:
            here = 0.35 + 0.65 * believed[state.here]
            yield text(action, weight * here, kind)
            weight *= 1 - here
        for station, share in _elsewhere(believed, state).items():
            yield text(f"go {station}", weight * share, kind)


def _elsewhere(believed: Weights, state: _State) -> dict[str, float]:
    """Shares of the other places, those where it has been at a fifth."""
    weights = {
        place: share * (0.2 if place in state.been else 1.0) for place, share in believed.items() if place != state.here
    }
    return shares(weights)


def _mistakes(state: _State) -> Iterator[Option]:
    """Carelessness of every state."""
    yield text(f"use {state.here} on {state.material}", 0.04, "malformed")
    yield text("gather", 0.02, "malformed")
    yield text("stop", 0.02, "stop")
    yield text(f"assemble {state.form}", 0.03, "skip")
    if state.failed:
        yield text(state.failed, 0.15, "repeat")


def _read(history: History) -> _State:
    """The state that a history tells."""
    first, *turns = [message for message in history if message.role != "system"]
    order, scene = _ORDER.search(first.content), _SCENE.search(history[-1].content)
    assert order is not None
    assert scene is not None
    material, form, rule = order.groups()
    assert material in MATERIALS
    assert form in FORMS
    here, seen, carried = scene.groups()
    told = history[-1].content
    failed = told.startswith(("There is no", "You have no", "That is no", "A ", "There are no"))
    last = turns[-2].content.removeprefix("Action: ") if turns and failed else ""
    been = {found[1] for turn in turns if (found := _SCENE.search(turn.content))}
    return _State(
        material,
        form,
        bool(rule),
        here,
        frozenset(seen.split(", ")),
        frozenset(carried.split(", ")),
        frozenset(been),
        last,
    )
