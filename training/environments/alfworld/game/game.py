"""One ALFWorld game as plain data, read from `game.tw-pddl` or built directly.

An `AlfWorldGame` has only what the text engine needs: the room's receptacles and objects by their textual
names, the receptacles into which objects fit, the task sentence and the goal.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

from qguide.qnet.errors import InvalidGameError

Facts = dict[str, set[tuple[str, ...]]]
"""Arguments of the true facts of each predicate; predicates and arguments are in lower case."""

_COMMENT = re.compile(r";[^\n]*")
_ATOM = re.compile(r"\(\s*([a-z]\w*)((?:\s+[\w?]+)+)\s*\)")
_RECEPTACLE_TYPE = re.compile(r"\(\s*receptacletype\s+\?r\s+(\w+)\s*\)")
_TYPE_SUFFIX = "type"


def initial_facts(problem: str) -> Facts:
    """Facts of the initial state."""
    return _atoms(_sections(problem)[0])


def goal_atoms(problem: str) -> Facts:
    """The atoms that the goal mentions, variables included."""
    return _atoms(_sections(problem)[1])


def _sections(problem: str) -> tuple[str, str]:
    text = _COMMENT.sub("", problem).lower()
    _, init_marker, rest = text.partition("(:init")
    init, goal_marker, goal = rest.partition("(:goal")
    if not init_marker or not goal_marker:
        raise ValueError("the PDDL problem lacks '(:init' or '(:goal'")
    return init, goal


def _atoms(text: str) -> Facts:
    facts: Facts = defaultdict(set)
    for predicate, arguments in _ATOM.findall(text):
        facts[predicate].add(tuple(arguments.split()))
    return facts


def appliance_kinds(domain: str, action: str) -> frozenset[str]:
    """Receptacle kinds in an action's precondition, such as sinks for "CleanObject"."""
    text = _COMMENT.sub("", domain).lower()
    _, _, body = text.partition(f"(:action {action.lower()}\n")
    precondition = body.partition(":effect")[0]
    return frozenset(kind_of_type(name) for name in _RECEPTACLE_TYPE.findall(precondition))


def kind_of_type(type_name: str) -> str:
    """The kind that a PDDL type stands for, such as "desklamp" for "desklamptype"."""
    return type_name.removesuffix(_TYPE_SUFFIX)


def entity_names(facts: Facts) -> dict[str, str]:
    """Textual names of all entities, as alfworld's `Demangler` assigns them.

    Ids are sorted and the numbers of each base name count down, so the first "drawer" has the
    highest number. Objects, receptacles and locations are sorted together.
    """
    ids = {argument for rows in facts.values() for row in rows for argument in row}
    return _numbered(sorted(entity for entity in ids if "_bar_" in entity))


def _numbered(sorted_ids: Iterable[str]) -> dict[str, str]:
    bases = {entity: _base_name(entity) for entity in sorted_ids}
    left = Counter(bases.values())
    names = {}
    for entity, base in bases.items():
        names[entity] = f"{base} {left[base]}"
        left[base] -= 1
    return names


def _base_name(entity: str) -> str:
    base = entity.split("_bar_", 1)[0]
    return base + "basin" if "basin" in entity else base


GoalKind = Literal[
    "pick_and_place_simple",
    "pick_two_obj_and_place",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
]
GOAL_KINDS: tuple[GoalKind, ...] = get_args(GoalKind)

ItemState = Literal["clean", "hot", "cool", "sliced", "toggled"]
ITEM_TRAITS = ("pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable")
"""The fields of `Item` that say what can be done with it, named as the game's predicates are."""


class Treatment(NamedTuple):
    """The verb that treats an object, the state that it has then, and the appliance for it."""

    verb: str
    state: ItemState
    appliance: str

    @property
    def trait(self) -> str:
        """The trait of objects that can be treated so."""
        return f"{self.verb}able"


TREATMENTS: Mapping[str, Treatment] = {
    "pick_clean_then_place_in_recep": Treatment("clean", "clean", "sinkbasin"),
    "pick_heat_then_place_in_recep": Treatment("heat", "hot", "microwave"),
    "pick_cool_then_place_in_recep": Treatment("cool", "cool", "fridge"),
}
"""The treatment of each goal kind that has one."""

PUT_TEMPLATE = "put {o} in/on {r}"
_TASK = re.compile(r'"rhs"\s*:\s*"(Your task is to: [^"]*)"')
_REQUIRED_KEYS = ("pddl_domain", "grammar", "pddl_problem")


@dataclass(frozen=True, slots=True)
class Receptacle:
    """A place in or on which objects lie.

    Attributes:
        location: the agent's location in front of it, such as "loc 12"; it may be shared.
    """

    name: str
    kind: str
    location: str
    openable: bool = False
    opened: bool = False
    contents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """An object.

    Attributes:
        location: location at which it can be sliced, usually its receptacle's, or None.
    """

    name: str
    kind: str
    location: str | None
    pickupable: bool = False
    cleanable: bool = False
    heatable: bool = False
    coolable: bool = False
    toggleable: bool = False
    sliceable: bool = False
    inner: tuple[str, ...] | None = None
    states: frozenset[ItemState] = frozenset()


@dataclass(frozen=True, slots=True)
class Goal:
    """Goal of a game.

    Attributes:
        receptacle_kind: kind of the target receptacle; None for `look_at_obj_in_light`.
        lamp_kind: kind of the lamp to use; None for all other goals.
    """

    kind: GoalKind
    item_kind: str
    receptacle_kind: str | None = None
    lamp_kind: str | None = None


@dataclass(frozen=True, slots=True)
class AlfWorldGame:
    """A playable game.

    Attributes:
        task: the whole sentence, "Your task is to: put some apple on desk."
        receptacles: all receptacles, in the engine's order.
        items: all objects, in the engine's order, in which contents are always listed.
        can_contain: pairs (receptacle kind, item kind) that fit together.
        cleaners, heaters, coolers: receptacle kinds that clean, heat or cool.
    """

    task: str
    goal: Goal
    start: str
    receptacles: tuple[Receptacle, ...]
    items: tuple[Item, ...]
    can_contain: frozenset[tuple[str, str]]
    cleaners: frozenset[str] = frozenset({"sink", "sinkbasin"})
    heaters: frozenset[str] = frozenset({"microwave"})
    coolers: frozenset[str] = frozenset({"fridge"})

    def __post_init__(self) -> None:
        """Refuse a game with ambiguous names or unknown contents."""
        names = [r.name for r in self.receptacles] + [item.name for item in self.items]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise InvalidGameError(f"names used twice: {', '.join(twice)}; give them different numbers")
        known = {item.name for item in self.items}
        for receptacle in self.receptacles:
            if unknown := set(receptacle.contents) - known:
                raise InvalidGameError(
                    f"{receptacle.name} contains {sorted(unknown)}, which are not among the game's"
                    " items; add them to items"
                )


def load_game(path: Path) -> AlfWorldGame:
    """Read the game in a `game.tw-pddl` file."""
    data = _read_json(path)
    try:
        return parse_game(data)
    except InvalidGameError as error:
        raise InvalidGameError(f"{path}: {error}") from error


def scan_game(path: Path) -> tuple[bool, GoalKind]:
    """Read a game file's solvable mark and goal type, without building the whole game."""
    data = _read_json(path)
    try:
        goal = _goal(goal_atoms(_text(data, "pddl_problem")))
    except (InvalidGameError, ValueError) as error:
        raise InvalidGameError(f"{path}: {error}") from error
    return data.get("solvable") is True, goal.kind


def _read_json(path: Path) -> dict[str, object]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidGameError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise InvalidGameError(f"{path} contains a {type(data).__name__}, not a JSON object; unpack the game again")
    return data


def parse_game(data: Mapping[str, object]) -> AlfWorldGame:
    """Build the game from the decoded JSON of a `game.tw-pddl` file."""
    domain, grammar, problem = (_text(data, key) for key in _REQUIRED_KEYS)
    try:
        facts, goal = initial_facts(problem), goal_atoms(problem)
    except ValueError as error:
        raise InvalidGameError(f"{error}; unpack the game again") from error
    names = entity_names(facts)
    if facts["holds"]:
        raise InvalidGameError("the agent starts with an object in hand; play the game with engine=textworld")
    try:
        return AlfWorldGame(
            task=_task(grammar),
            goal=_goal(goal),
            start=names[_single(facts, "atlocation")[1]],
            receptacles=_receptacles(facts, names),
            items=_items(facts, names),
            can_contain=frozenset((kind_of_type(r), kind_of_type(o)) for r, o in facts["cancontain"]),
            cleaners=appliance_kinds(domain, "CleanObject"),
            heaters=appliance_kinds(domain, "HeatObject"),
            coolers=appliance_kinds(domain, "CoolObject"),
        )
    except (KeyError, ValueError) as error:
        raise InvalidGameError(
            f"the initial facts contradict each other near {error}; unpack the game again"
        ) from error


def _text(data: Mapping[str, object], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str):
        raise InvalidGameError(
            f"{key} is {type(value).__name__}, but a game needs texts for"
            f" {', '.join(_REQUIRED_KEYS)}; unpack the game again"
        )
    return value


def _task(grammar: str) -> str:
    match = _TASK.search(grammar)
    if match is None:
        raise InvalidGameError("the grammar has no 'Your task is to: …' sentence; unpack the game again")
    if f'"{PUT_TEMPLATE}"' not in grammar:
        raise InvalidGameError(
            f"the grammar lacks '{PUT_TEMPLATE}', and the Python engine supports only grammars"
            " with it; play the game with engine=textworld"
        )
    return match[1]


def _single(facts: Facts, predicate: str) -> tuple[str, ...]:
    rows = facts[predicate]
    if len(rows) != 1:
        raise InvalidGameError(f"there are {len(rows)} facts of {predicate} instead of 1; unpack the game again")
    return next(iter(rows))


def _goal(atoms: Facts) -> Goal:
    item_kinds = {kind_of_type(row[1]) for row in atoms["objecttype"]}
    receptacle_kinds = {kind_of_type(row[1]) for row in atoms["receptacletype"]}
    if atoms["istoggled"]:
        toggled = {row[0] for row in atoms["istoggled"]}
        lamps = {kind_of_type(kind) for name, kind in atoms["objecttype"] if name in toggled}
        wanted = item_kinds - lamps
        if len(lamps) == len(wanted) == 1:
            return Goal("look_at_obj_in_light", wanted.pop(), lamp_kind=lamps.pop())
    elif len(item_kinds) == len(receptacle_kinds) == 1:
        return Goal(_placing_kind(atoms), item_kinds.pop(), receptacle_kinds.pop())
    raise InvalidGameError(
        f"the goal with items {sorted(item_kinds)} and receptacles {sorted(receptacle_kinds)}"
        f" is none of {', '.join(GOAL_KINDS)}; play the game with engine=textworld"
    )


def _placing_kind(atoms: Facts) -> GoalKind:
    for kind, treatment in TREATMENTS.items():
        if atoms[f"is{treatment.state}"]:
            return cast(GoalKind, kind)
    placed = {row[0] for row in atoms["inreceptacle"]}
    return "pick_two_obj_and_place" if len(placed) > 1 else "pick_and_place_simple"


def _pairs(facts: Facts, predicate: str) -> dict[str, str]:
    rows = facts[predicate]
    if any(len(row) != 2 for row in rows):
        raise ValueError(f"a {predicate} without exactly two arguments")
    return {row[0]: row[1] for row in rows}


def _receptacles(facts: Facts, names: Mapping[str, str]) -> tuple[Receptacle, ...]:
    kinds = _pairs(facts, "receptacletype")
    inside: dict[str, list[str]] = {entity: [] for entity in kinds}
    for item, receptacle in sorted(facts["inreceptacle"]):
        inside[receptacle].append(names[item])
    return tuple(
        Receptacle(
            name=names[entity],
            kind=kind_of_type(kinds[entity]),
            location=names[location],
            openable=(entity,) in facts["openable"],
            opened=(entity,) in facts["opened"],
            contents=tuple(inside[entity]),
        )
        for entity, location in sorted(facts["receptacleatlocation"])
    )


def _items(facts: Facts, names: Mapping[str, str]) -> tuple[Item, ...]:
    locations = _pairs(facts, "objectatlocation")
    inner: dict[str, list[str]] = {entity: [] for (entity,) in facts["isreceptacleobject"]}
    for item, outer in sorted(facts["inreceptacleobject"]):
        inner.setdefault(outer, []).append(names[item])

    def build(entity: str, type_name: str) -> Item:
        location = locations.get(entity)
        return Item(
            name=names[entity],
            kind=kind_of_type(type_name),
            location=None if location is None else names[location],
            inner=tuple(inner[entity]) if (entity,) in facts["isreceptacleobject"] else None,
            states=frozenset(state for state in get_args(ItemState) if (entity,) in facts[f"is{state}"]),
            **{trait: (entity,) in facts[trait] for trait in ITEM_TRAITS},
        )

    return tuple(build(entity, type_name) for entity, type_name in sorted(facts["objecttype"]))
