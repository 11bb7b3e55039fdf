"""Generator of ALFWorld games whose rooms, objects and goals are distributed as in the real games.

A room's receptacles, its objects and a reachable goal are drawn from counts over the real train
games (`statistics`), never copied from one game. A game is a function of its seed, so only the seed
has to be stored.
"""

from collections.abc import Mapping
from random import Random
from typing import Any

from qguide.qnet.errors import EnvironmentFailureError
from qguide.training.environments.alfworld.game.game import (
    GOAL_KINDS,
    ITEM_TRAITS,
    TREATMENTS,
    AlfWorldGame,
    Goal,
    Item,
    Receptacle,
)
from qguide.training.environments.alfworld.game.statistics import Counts, Statistics, load_statistics

NOVELTY = 0.3
"""Share of games whose target may be any receptacle that can hold the item, even in a combination
that no real game has."""

APPLIANCES = {kind: treatment.appliance for kind, treatment in TREATMENTS.items()}
START = "loc 0"
"""The middle of the room. There is no receptacle, so no text names it."""

_TRIES = 200
_JITTER = 0.15


def generate_game(seed: int) -> AlfWorldGame:
    """The game of a seed, which is solvable and not won at the start."""
    return draw_game(seed)[1]


def draw_game(seed: int, *, statistics: Statistics | None = None) -> tuple[str, AlfWorldGame]:
    """The kind of room and the game of a seed."""
    known = statistics or load_statistics()
    rng = Random(f"alfworld {seed}")
    for _ in range(_TRIES):
        draft = _Draft(rng, known)
        game = draft.game()
        if game is not None:
            return draft.room_kind, game
    raise EnvironmentFailureError(
        f"seed {seed}: none of {_TRIES} drafted rooms allows its goal; count the statistics again on solvable games"
    )


def _kind(name: str) -> str:
    return name.split()[0]


def _pick(rng: Random, counts: Mapping[str, int]) -> str:
    return rng.choices(list(counts), weights=list(counts.values()))[0]


class _Draft:
    """One attempt to draw a game; `game` returns None if the room does not allow the goal."""

    def __init__(self, rng: Random, statistics: Statistics) -> None:
        self.rng = rng
        self.statistics = statistics
        self.room_kind, self.goal = self._draw_goal()
        self.room = statistics.rooms[self.room_kind]
        self.layout = self._draw_layout()

    def game(self) -> AlfWorldGame | None:
        goal = self.goal
        fixtures = {goal.receptacle_kind, APPLIANCES.get(goal.kind)} - {None}
        objects = {goal.item_kind, goal.lamp_kind} - {None}
        if not (fixtures <= self.layout.keys() and objects <= self.room.item_numbers.keys()):
            return None
        receptacles = self._receptacles()
        contents: dict[str, list[str]] = {name: [] for name, _, _ in receptacles}
        items = self._items(contents)
        if items is None:
            return None
        places = {name: place for name, place, _ in receptacles}
        where = {item: places[name] for name, held in contents.items() for item in held}
        return AlfWorldGame(
            task=self._task(),
            goal=goal,
            start=START,
            receptacles=tuple(
                # Items are named in their final order, so contents are in order too.
                Receptacle(name, _kind(name), place, openable, contents=tuple(contents[name]))
                for name, place, openable in receptacles
            ),
            items=tuple(self._item(name, where[name]) for name in items),
            can_contain=frozenset((kind, item) for kind, held in self.statistics.can_contain.items() for item in held),
        )

    def _task(self) -> str:
        wording = _pick(self.rng, self.statistics.wordings[self.goal.kind])
        target = self.goal.receptacle_kind or self.goal.lamp_kind or ""
        return wording.format(item=self.goal.item_kind, target=target)

    def _draw_goal(self) -> tuple[str, Goal]:
        goals = self.statistics.goals
        kind = self.rng.choice(GOAL_KINDS)
        rooms = {room: sum(sum(targets.values()) for targets in items.values()) for room, items in goals[kind].items()}
        room = _pick(self.rng, rooms)
        items = {item: sum(targets.values()) for item, targets in goals[kind][room].items()}
        item = _pick(self.rng, items)
        target = _pick(self.rng, goals[kind][room][item])
        if kind == "look_at_obj_in_light":
            return room, Goal(kind, item, lamp_kind=target)
        if self.rng.random() < NOVELTY:
            target = self._novel_target(item, room) or target
        return room, Goal(kind, item, receptacle_kind=target)

    def _novel_target(self, item: str, room: str) -> str | None:
        can, numbers = self.statistics.can_contain, self.statistics.rooms[room].receptacle_numbers
        fitting = sorted(kind for kind in numbers if item in can.get(kind, ()))
        return self.rng.choice(fitting) if fitting else None

    def _draw_layout(self) -> Counts:
        layouts = self.room.layouts
        numbers, _ = self.rng.choices(layouts, weights=[games for _, games in layouts])[0]
        return {kind: self._jitter(number) for kind, number in numbers.items()}

    def _jitter(self, number: int) -> int:
        if number > 1 and self.rng.random() < 2 * _JITTER:
            return number + self.rng.choice((-1, 1))
        return number

    def _receptacles(self) -> list[tuple[str, str, bool]]:
        names = [f"{k} {n}" for k in sorted(self.layout) for n in range(self.layout[k], 0, -1)]
        free = list(range(1, len(names) + 1))
        self.rng.shuffle(free)
        rows: list[tuple[str, str, bool]] = []
        for name in names:
            kind = _kind(name)
            counts = self.statistics.receptacles[kind]
            openable = self.rng.random() * counts["all"] < counts.get("openable", 0)
            twin = rows and _kind(rows[-1][0]) == kind and self._shares(kind)
            place = rows[-1][1] if twin else f"loc {free.pop()}"
            rows.append((name, place, openable))
        return rows

    def _shares(self, kind: str) -> bool:
        shared = self.room.shared_locations
        together, alone = shared.get(f"{kind}+{kind}", 0), shared.get(kind, 0)
        return self.rng.random() * (together + alone + 1) < together

    def _items(self, contents: dict[str, list[str]]) -> list[str] | None:
        names: list[str] = []
        for kind in sorted(self.room.item_numbers):
            wanted = kind == self.goal.item_kind
            number = self._number(kind)
            if wanted:
                number = max(number, 2 if self.goal.kind == "pick_two_obj_and_place" else 1)
            if kind == self.goal.lamp_kind:
                number = max(number, 1)
            for index in range(number, 0, -1):
                place = self._place(kind, contents)
                if place is None and (wanted or kind == self.goal.lamp_kind):
                    return None
                if place is not None:
                    contents[place].append(f"{kind} {index}")
                    names.append(f"{kind} {index}")
        return names

    def _number(self, kind: str) -> int:
        numbers = self.room.item_numbers[kind]
        if self.rng.random() * self.room.games >= sum(numbers.values()):
            return 0
        return int(_pick(self.rng, numbers))

    def _place(self, kind: str, contents: Mapping[str, object]) -> str | None:
        by_kind: dict[str, list[str]] = {}
        for name in contents:
            by_kind.setdefault(_kind(name), []).append(name)
        placements = self.room.placements.get(kind, {})
        wanted = kind == self.goal.item_kind
        weights = {
            place: count
            for place, count in placements.items()
            if place in by_kind and not (wanted and place == self.goal.receptacle_kind)
        }
        if not weights:
            return None
        return self.rng.choice(by_kind[_pick(self.rng, weights)])

    def _item(self, name: str, place: str) -> Item:
        kind = _kind(name)
        counts = self.statistics.items[kind]
        traits: dict[str, Any] = {trait: 2 * counts.get(trait, 0) > counts["all"] for trait in ITEM_TRAITS}
        return Item(name, kind, place, **traits)
