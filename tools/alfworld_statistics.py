"""Count ALFWorld's train games into the statistics that ship with its environment.

    python -m tools.alfworld_statistics TRAIN_GAMES_DIR

writes `statistics.json`. Only train games are counted.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from qguide.qnet.errors import InvalidGameError
from qguide.training.environments.alfworld.game.game import AlfWorldGame, Receptacle, load_game
from qguide.training.environments.alfworld.game.statistics import (
    STATISTICS_FILE,
    Counts,
    RoomKind,
    RoomStatistics,
    Statistics,
)

ITEM_PROPERTIES = ("pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable")
SOURCE = "counted on the {games:,} games of ALFWorld's train split (MIT licence)"
_ROOM_OF_HUNDRED: dict[int, RoomKind] = {0: "kitchen", 2: "living room", 3: "bedroom", 4: "bathroom"}
_SHARING = "+"


def write_statistics(statistics: Statistics, path: Path = STATISTICS_FILE) -> None:
    """Write the statistics with each key of the top two levels on its own line, for diffs."""
    data = asdict(statistics)
    lines = ",\n".join(f"{json.dumps(key)}: {_text(value)}" for key, value in data.items())
    path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def _text(value: object) -> str:
    match value:
        case dict():
            rows = [f" {json.dumps(k)}: {_compact(v)}" for k, v in value.items()]
            return "{\n" + ",\n".join(rows) + "\n}"
        case _:
            return json.dumps(value)


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def room_kind(game_path: Path) -> RoomKind:
    """The kind of room, from the scene number at the end of the name of the task's folder."""
    scene = game_path.parent.parent.name.rpartition("-")[2]
    if not scene.isdecimal() or int(scene) // 100 not in _ROOM_OF_HUNDRED:
        raise InvalidGameError(
            f"{game_path}: its task's folder does not end with a scene number from 1 to 430; keep "
            "the names of ALFWorld's folders"
        )
    return _ROOM_OF_HUNDRED[int(scene) // 100]


def count_statistics(games_dir: Path) -> Statistics:
    """Count every game file below a folder of train games."""
    paths = sorted(games_dir.rglob("game.tw-pddl"))
    if not paths:
        raise InvalidGameError(f"no game.tw-pddl below {games_dir}; name the folder of train games")
    return tally((room_kind(path), load_game(path)) for path in paths)


def tally(games: Iterable[tuple[RoomKind, AlfWorldGame]]) -> Statistics:
    """Count games, each given with its kind of room."""
    counter = _Counter()
    for room, game in games:
        counter.add(room, game)
    return counter.statistics()


class _Counter:
    """Flat counters whose keys become nested tables at the end."""

    def __init__(self) -> None:
        self.games: Counter[tuple[str, ...]] = Counter()
        self.receptacle_numbers: Counter[tuple[str, ...]] = Counter()
        self.layouts: Counter[tuple[str, tuple[tuple[str, int], ...]]] = Counter()
        self.item_numbers: Counter[tuple[str, ...]] = Counter()
        self.placements: Counter[tuple[str, ...]] = Counter()
        self.shared: Counter[tuple[str, ...]] = Counter()
        self.receptacles: Counter[tuple[str, ...]] = Counter()
        self.items: Counter[tuple[str, ...]] = Counter()
        self.inside: Counter[tuple[str, ...]] = Counter()
        self.holding: Counter[tuple[str, ...]] = Counter()
        self.visits: Counter[tuple[str, ...]] = Counter()
        self.can_contain: set[tuple[str, str]] = set()
        self.goals: Counter[tuple[str, ...]] = Counter()
        self.wordings: Counter[tuple[str, ...]] = Counter()

    def add(self, room: str, game: AlfWorldGame) -> None:
        """Count one game."""
        self.games[room,] += 1
        self.can_contain |= game.can_contain
        self._add_receptacles(room, game.receptacles)
        self._add_items(room, game)
        self._add_finds(game)
        goal = game.goal
        target = goal.receptacle_kind or goal.lamp_kind or ""
        self.goals[goal.kind, room, goal.item_kind, target] += 1
        self.wordings[goal.kind, _wording(game.task, goal.item_kind, target)] += 1

    def _add_receptacles(self, room: str, receptacles: tuple[Receptacle, ...]) -> None:
        numbers = Counter(receptacle.kind for receptacle in receptacles)
        self.layouts[room, tuple(sorted(numbers.items()))] += 1
        for kind, number in numbers.items():
            self.receptacle_numbers[room, kind, str(number)] += 1
        together: dict[str, list[str]] = {}
        for receptacle in receptacles:
            together.setdefault(receptacle.location, []).append(receptacle.kind)
            self.receptacles[receptacle.kind, "all"] += 1
            self.receptacles[receptacle.kind, "openable"] += receptacle.openable
            self.receptacles[receptacle.kind, "opened"] += receptacle.opened
        for kinds in together.values():
            self.shared[room, _SHARING.join(sorted(kinds))] += 1

    def _add_items(self, room: str, game: AlfWorldGame) -> None:
        holder = {name: r.kind for r in game.receptacles for name in r.contents}
        kinds = {item.name: item.kind for item in game.items}
        for kind, number in Counter(kinds.values()).items():
            self.item_numbers[room, kind, str(number)] += 1
        for item in game.items:
            self.placements[room, item.kind, holder.get(item.name, "")] += 1
            self.items[item.kind, "all"] += 1
            for name in ITEM_PROPERTIES:
                self.items[item.kind, name] += getattr(item, name)
            for name in item.inner or ():
                self.inside[item.kind, kinds[name]] += 1

    def _add_finds(self, game: AlfWorldGame) -> None:
        kinds = {item.name: item.kind for item in game.items}
        seen = [(r.kind, {kinds[name] for name in r.contents}) for r in game.receptacles]
        for item in set().union(*(held for _, held in seen)):
            for receptacle, held in seen:
                self.visits[item, receptacle] += 1
                self.holding[item, receptacle] += item in held

    def statistics(self) -> Statistics:
        """The counts as nested tables."""
        games = sum(self.games.values())
        return Statistics(
            source=SOURCE.format(games=games),
            games=games,
            rooms={room: self._room(room) for (room,) in sorted(self.games)},
            receptacles=_table(self.receptacles),
            items=_table(self.items),
            inside=_table(self.inside),
            finds=self._finds(),
            can_contain=_lists(self.can_contain),
            goals=self._goals(),
            wordings=_table(self.wordings),
        )

    def _room(self, room: str) -> RoomStatistics:
        layouts = sorted(self.layouts.items())
        return RoomStatistics(
            games=self.games[room,],
            receptacle_numbers=_table(_below(self.receptacle_numbers, room)),
            layouts=[(dict(kinds), number) for (where, kinds), number in layouts if where == room],
            item_numbers=_table(_below(self.item_numbers, room)),
            placements=_table(_below(self.placements, room)),
            shared_locations={key: number for (key,), number in sorted(_below(self.shared, room).items())},
        )

    def _goals(self) -> dict[str, dict[str, dict[str, Counts]]]:
        table: dict[str, dict[str, dict[str, Counts]]] = {}
        for (kind, room, item, target), games in sorted(self.goals.items()):
            table.setdefault(kind, {}).setdefault(room, {}).setdefault(item, {})[target] = games
        return table

    def _finds(self) -> dict[str, dict[str, tuple[int, int]]]:
        table: dict[str, dict[str, tuple[int, int]]] = {}
        for (item, receptacle), holding in sorted(self.holding.items()):
            if holding:
                pair = (holding, self.visits[item, receptacle])
                table.setdefault(item, {})[receptacle] = pair
        return table


def _wording(task: str, item: str, target: str) -> str:
    names = {item: "{item}", target: "{target}"}
    return re.sub(rf"\b({item}|{target})\b", lambda match: names[match[1]], task)


def _below(counter: Mapping[tuple[str, ...], int], first: str) -> dict[tuple[str, ...], int]:
    return {key[1:]: number for key, number in counter.items() if key[0] == first}


def _table(counter: Mapping[tuple[str, ...], int]) -> dict[str, Counts]:
    table: dict[str, Counts] = {}
    for (row, column), number in sorted(counter.items()):
        if number:
            table.setdefault(row, {})[column] = number
    return table


def _lists(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    table: dict[str, list[str]] = {}
    for row, column in sorted(pairs):
        table.setdefault(row, []).append(column)
    return table


if __name__ == "__main__":
    write_statistics(count_statistics(Path(sys.argv[1])))
