"""Statistics of ALFWorld's train games: the places of objects and the contents of rooms.

`python -m tools.alfworld_statistics` counts the train games, and no others. The expert's search
order and the generator's rooms are based on these numbers.
"""

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

RoomKind = Literal["kitchen", "living room", "bedroom", "bathroom"]
STATISTICS_FILE = Path(__file__).with_name("statistics.json")

Counts = dict[str, int]


@dataclass(frozen=True, slots=True)
class RoomStatistics:
    """Counts over the games of one kind of room.

    Attributes:
        receptacle_numbers: receptacle kind -> number in a room -> games.
        layouts: ({kind: number}, games) for each exact set of receptacles.
        item_numbers: item kind -> number in a room -> games.
        placements: item kind -> receptacle kind -> number of items there; "" for no receptacle.
        shared_locations: kinds of the receptacles at one location, joined by "+" -> times seen;
            single receptacles are included, so that shares can be computed.
    """

    games: int = 0
    receptacle_numbers: dict[str, Counts] = field(default_factory=dict)
    layouts: list[tuple[Counts, int]] = field(default_factory=list)
    item_numbers: dict[str, Counts] = field(default_factory=dict)
    placements: dict[str, Counts] = field(default_factory=dict)
    shared_locations: Counts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts over all games.

    Attributes:
        receptacles: receptacle kind -> number of "all", of "openable" and of "opened" ones.
        items: item kind -> number of "all", and of those with each property.
        inside: item kind -> item kind -> how often the second starts inside the first.
        finds: item kind -> receptacle kind -> (receptacles with at least one such item, all
            receptacles), over the games that have such an item in some receptacle.
        goals: goal kind -> room kind -> item kind -> target -> games; the target is a
            receptacle kind, or the lamp kind of `look_at_obj_in_light`.
        wordings: goal kind -> the task sentence with {item} and {target} -> games.
    """

    source: str
    games: int
    rooms: dict[str, RoomStatistics]
    receptacles: dict[str, Counts]
    items: dict[str, Counts]
    inside: dict[str, Counts]
    finds: dict[str, dict[str, tuple[int, int]]]
    can_contain: dict[str, list[str]]
    goals: dict[str, dict[str, dict[str, Counts]]]
    wordings: dict[str, Counts]

    def find_rate(self, item: str, receptacle: str) -> float:
        """Probability that a receptacle of this kind contains such an item."""
        holding, total = self.finds.get(item, {}).get(receptacle, (0, 0))
        return holding / total if total else 0.0

    def fullness(self, receptacle: str) -> float:
        """Sum of the find rates of all item kinds: about the number of kinds in a receptacle."""
        return sum(self.find_rate(item, receptacle) for item in self.finds)

    def is_openable(self, receptacle: str) -> bool:
        """True if most receptacles of this kind can be opened and closed."""
        counts = self.receptacles.get(receptacle, {})
        return 2 * counts.get("openable", 0) > counts.get("all", 0)


@cache
def load_statistics(path: Path = STATISTICS_FILE) -> Statistics:
    """Read the statistics that ship with QGuide, once."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    data["rooms"] = {kind: _room(room) for kind, room in data["rooms"].items()}
    data["finds"] = {
        item: {kind: (holding, total) for kind, (holding, total) in row.items()} for item, row in data["finds"].items()
    }
    return Statistics(**data)


def _room(data: dict[str, Any]) -> RoomStatistics:
    layouts = [(numbers, games) for numbers, games in data["layouts"]]
    return RoomStatistics(**{**data, "layouts": layouts})
