"""Crafting with recipes and graded reward, behind Gymnasium's interface: plain text, 12 actions.

    qguide environment check benchmarks.strangers.crafting:Crafting --harmless look

An order such as "Make a copper lantern" takes a material, which is gathered, perhaps soaked, and
worked at its station, and a part from the store; both are assembled at the station of the form.
Where materials lie, which part a form takes and where things are made are the workshop's secrets,
the same in every order.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from random import Random
from typing import Any

from benchmarks.strangers.worlds import shared_out, world_and_number

PLACES = ("forest", "mine", "meadow", "river")
STORE = "store"
STATIONS = ("furnace", "loom", "workbench")
MATERIALS = ("copper", "willow", "clay", "flax", "amber", "slate", "wool", "horn")
FORMS = ("lantern", "basket", "flute", "bowl", "clasp", "kite", "comb", "drum")
PARTS = ("rope", "glass", "nails", "wax", "leather")
MOST_ACTIONS = 12
HINT = "Actions: go PLACE, gather THING, soak THING, work THING, assemble FORM, look, stop."


@dataclass(frozen=True)
class Workshop:
    """The secrets of one workshop.

    Attributes:
        place: of each material and part.
        station: at which each material is worked and each form assembled.
        part: of each form.
        soaked: materials that have to be soaked before they are worked; every order says which.
        orders: pairs of material and form, in the order of their numbers.
    """

    place: dict[str, str]
    station: dict[str, str]
    part: dict[str, str]
    soaked: frozenset[str]
    orders: tuple[tuple[str, str], ...]


@lru_cache(maxsize=64)
def workshop(world: int) -> Workshop:
    """The workshop of a world."""
    chance = Random(f"workshop {world}")
    orders = list(product(MATERIALS, FORMS))
    place = shared_out(MATERIALS, PLACES, chance) | dict.fromkeys(PARTS, STORE)
    station = shared_out(MATERIALS, STATIONS, chance) | shared_out(FORMS, STATIONS, chance)
    part = shared_out(FORMS, PARTS, chance)
    soaked = frozenset(chance.sample(MATERIALS, 4))
    chance.shuffle(orders)
    return Workshop(place, station, part, soaked, tuple(orders))


class Crafting:
    """One order; see Gymnasium's `Env`."""

    system = f"You work in a workshop. {HINT} Write a line `Action: …`."

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the order of that number."""
        world, number = world_and_number(seed or 0)
        self.shop = workshop(world)
        self.material, self.form = self.shop.orders[number % len(self.shop.orders)]
        self.here, self.carried, self.made, self.taken = "gate", set[str](), False, 0
        rule = f" Rule: soak {self.material} before you work it." if self._soaks else ""
        return f"Make a {self.material} {self.form}.{rule} {HINT}\n{self._scene()}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action; the reward is the change of what the order is worth."""
        before = self._worth()
        self.taken += 1
        verb, _, thing = action.partition(" ")
        said = None if verb == "stop" and thing else self._act(verb, thing)
        text = f"{said} {self._scene()}" if said else f"That is no action. {HINT}\n{self._scene()}"
        over = self.made or action == "stop"
        cut = not over and self.taken == MOST_ACTIONS
        return text, self._worth() - before, over, cut, {"valid": said is not None}

    @property
    def _soaks(self) -> bool:
        return self.material in self.shop.soaked

    def _scene(self) -> str:
        lying = [thing for thing, place in self.shop.place.items() if place == self.here]
        seen = ", ".join(lying) or "nothing"
        return f"You are at the {self.here}. You see {seen}. You carry {', '.join(sorted(self.carried)) or 'nothing'}."

    def _worth(self) -> float:
        """Worth of what is carried, in [0, 1]; a product is 1."""
        if self.made:
            return 1.0
        raw = self.carried & {self.material, f"soaked {self.material}"}
        worth = 0.4 if f"worked {self.material}" in self.carried else 0.2 * bool(raw)
        return worth + 0.2 * (self.shop.part[self.form] in self.carried)

    def _act(self, verb: str, thing: str) -> str | None:
        """Effect of an action in words; None if it means nothing."""
        match verb:
            case "look" | "stop" if not thing:
                return "You look around." if verb == "look" else "You stop."
            case "go" if thing in (STORE, *PLACES, *STATIONS):
                self.here = thing
                return "You walk."
            case "gather" if thing in self.shop.place:
                if self.shop.place[thing] != self.here:
                    return f"There is no {thing} here."
                self.carried.add(thing)
                return f"You gather {thing}."
            case "soak" if thing in MATERIALS:
                if thing not in self.carried:
                    return f"You have no {thing}."
                self.carried = self.carried - {thing} | {f"soaked {thing}"}
                return f"You soak {thing}."
            case "work" if thing in MATERIALS:
                return self._work(thing)
            case "assemble" if thing in FORMS:
                return self._assemble(thing)
        return None

    def _work(self, thing: str) -> str:
        """Work a material, which cracks at a wrong station and where it had to be soaked."""
        had = self.carried & {thing, f"soaked {thing}"}
        if self.here not in STATIONS:
            return "There are no tools here."
        if not had:
            return f"You have no {thing}."
        soaked = f"soaked {thing}" in had
        self.carried -= had
        if self.here != self.shop.station[thing] or soaked != (thing in self.shop.soaked):
            return f"The {thing} cracks and is lost."
        self.carried.add(f"worked {thing}")
        return f"You work the {thing}."

    def _assemble(self, form: str) -> str:
        """Assemble the order; without the form's part the worked material is lost."""
        if self.here != self.shop.station[form] or form != self.form:
            return f"A {form} cannot be assembled here."
        if f"worked {self.material}" not in self.carried:
            return f"You have no worked {self.material}."
        self.made = self.shop.part[form] in self.carried
        self.carried -= {f"worked {self.material}"}
        return f"The {form} is done." if self.made else f"The {form} falls apart and is lost."
