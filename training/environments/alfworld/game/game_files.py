"""Writer of `game.tw-pddl`, the file that TextWorld and `game.load_game` read.

The file has no names: alfworld's demangler sorts the ids of the entities and numbers each base name
downwards. The ids written here are chosen so that the result is the game's own names.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path

from qguide.qnet.errors import InvalidGameError
from qguide.training.environments.alfworld.game.game import (
    ITEM_TRAITS,
    TREATMENTS,
    AlfWorldGame,
    Goal,
    Item,
    Receptacle,
    parse_game,
)

DOMAIN_FILE = Path(__file__).with_name("domain.pddl")
GRAMMAR_FILE = Path(__file__).with_name("grammar.txt")
LAST_NUMBER = 999
_TASK_PLACE = "@task@"
_AGENT = "agent1"
_KNIVES = frozenset({"knife", "butterknife"})
_NAME = re.compile(r"([a-z]+) (\d{1,3})")

Ids = dict[str, str]
"""Ids of receptacles, items and locations by name."""


def write_game(game: AlfWorldGame, path: Path) -> None:
    """Write a game; after a kill the file is either whole or missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.tmp")
    unfinished.write_text(json.dumps(game_data(game)) + "\n", encoding="utf-8")
    unfinished.replace(path)


def game_data(game: AlfWorldGame) -> dict[str, object]:
    """Content of a game's file, from which `parse_game` reads an equal game.

    There is one difference: the start "loc 0" gets the highest number instead, because numbers in
    files start at 1. No observation shows it.
    """
    game = replace(game, start=_numbered_start(game))
    data: dict[str, object] = {
        "pddl_domain": DOMAIN_FILE.read_text(encoding="utf-8"),
        "grammar": GRAMMAR_FILE.read_text(encoding="utf-8").replace(_TASK_PLACE, game.task),
        "pddl_problem": _problem(game),
        "solvable": True,
    }
    written = parse_game(data)
    wrong = [f.name for f in fields(AlfWorldGame) if getattr(written, f.name) != getattr(game, f.name)]
    if wrong:
        raise InvalidGameError(
            f"the file cannot express the game's {', '.join(wrong)}; list receptacles and items by"
            " kind, number each kind from its count down to 1, and keep the default appliances"
        )
    return data


def _numbered_start(game: AlfWorldGame) -> str:
    if _split(game.start)[1] > 0:
        return game.start
    places = _places(game) - {game.start}
    return f"loc {1 + max((_split(place)[1] for place in places), default=0)}"


def _places(game: AlfWorldGame) -> set[str]:
    places = {game.start} | {receptacle.location for receptacle in game.receptacles}
    return places | {item.location for item in game.items if item.location is not None}


def _split(name: str) -> tuple[str, int]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise InvalidGameError(f"{name!r} is not a kind and a number up to {LAST_NUMBER}; name it like 'cup 2'")
    return match[1], int(match[2])


def _ids(names: Iterable[str]) -> Ids:
    return {name: _id(*_split(name)) for name in names}


def _id(base: str, number: int) -> str:
    """The id of a name; ids in alphabetical order belong to numbers in descending order."""
    sorted_first = f"{base.removesuffix('basin')}_bar_{LAST_NUMBER - number:03d}"
    # Only this suffix lets the demangler distinguish a basin from its sink.
    return f"{sorted_first}_bar_{base}" if base.endswith("basin") else sorted_first


def _problem(game: AlfWorldGame) -> str:
    last_place = max(_split(place)[1] for place in _places(game))
    places = _ids(f"loc {number}" for number in range(1, last_place + 1))
    receptacles = _ids(receptacle.name for receptacle in game.receptacles)
    items = _ids(item.name for item in game.items)
    objects = [
        f"{_AGENT} - agent",
        *(f"{place} - location" for place in places.values()),
        *(f"{receptacle} - receptacle" for receptacle in receptacles.values()),
        *(f"{item} - object" for item in items.values()),
        *_types(game),
    ]
    facts = _facts(game, {**places, **receptacles, **items})
    return (
        "(define (problem game)\n (:domain alfred)\n"
        f" (:objects\n{_lines(objects)} )\n (:init\n{_lines(facts)} )\n"
        f" (:goal {_goal(game.goal)})\n)\n"
    )


def _lines(parts: Iterable[str]) -> str:
    return "".join(f"  {part}\n" for part in parts)


def _types(game: AlfWorldGame) -> Iterator[str]:
    goal = game.goal
    item_kinds = {item.kind for item in game.items} | {item for _, item in game.can_contain}
    item_kinds |= _KNIVES | {goal.item_kind, goal.lamp_kind or goal.item_kind}
    receptacle_kinds = {receptacle.kind for receptacle in game.receptacles}
    receptacle_kinds |= {receptacle for receptacle, _ in game.can_contain}
    receptacle_kinds |= game.cleaners | game.heaters | game.coolers
    if goal.receptacle_kind is not None:
        receptacle_kinds.add(goal.receptacle_kind)
    yield from (f"{kind}Type - otype" for kind in sorted(item_kinds))
    # A sink is an object, and its basin is a receptacle; the domain accepts its type for both.
    yield from (f"{kind}Type - rtype" for kind in sorted(receptacle_kinds - item_kinds))


def _facts(game: AlfWorldGame, ids: Ids) -> Iterator[str]:
    yield f"(atLocation {_AGENT} {ids[game.start]})"
    # The demangler numbers every entity in a fact; no rule of the domain reads `examined`.
    yield from (f"(examined {ids[name]})" for name in ids if name.startswith("loc "))
    yield from (f"(canContain {r}Type {i}Type)" for r, i in sorted(game.can_contain))
    for receptacle in game.receptacles:
        yield from _receptacle_facts(receptacle, ids)
    for item in game.items:
        yield from _item_facts(item, ids)


def _receptacle_facts(receptacle: Receptacle, ids: Ids) -> Iterator[str]:
    own = ids[receptacle.name]
    yield f"(receptacleType {own} {receptacle.kind}Type)"
    yield f"(receptacleAtLocation {own} {ids[receptacle.location]})"
    if receptacle.openable:
        yield f"(openable {own})"
    if receptacle.opened:
        yield f"(opened {own})"
    yield from (f"(inReceptacle {ids[name]} {own})" for name in receptacle.contents)


def _item_facts(item: Item, ids: Ids) -> Iterator[str]:
    own = ids[item.name]
    yield f"(objectType {own} {item.kind}Type)"
    if item.location is not None:
        yield f"(objectAtLocation {own} {ids[item.location]})"
    if item.inner is not None:
        yield f"(isReceptacleObject {own})"
    yield from (f"(inReceptacleObject {ids[name]} {own})" for name in item.inner or ())
    yield from (f"({trait} {own})" for trait in ITEM_TRAITS if getattr(item, trait))
    yield from (f"(is{state.capitalize()} {own})" for state in sorted(item.states))


def _goal(goal: Goal) -> str:
    placed = f"(objectType {{o}} {goal.item_kind}Type) (inReceptacle {{o}} ?r)"
    there = f"(receptacleType ?r {goal.receptacle_kind}Type)"
    match goal.kind:
        case "look_at_obj_in_light":
            return (
                "(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and"
                f" (objectType ?ot {goal.lamp_kind}Type) (toggleable ?ot) (isToggled ?ot)"
                " (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))"
                f" (exists (?o - object ?a - agent) (and (objectType ?o {goal.item_kind}Type)"
                " (holds ?a ?o))))"
            )
        case "pick_two_obj_and_place":
            return (
                f"(exists (?r - receptacle ?o1 - object ?o2 - object) (and {there}"
                f" (not (= ?o1 ?o2)) {placed.format(o='?o1')} {placed.format(o='?o2')}))"
            )
        case _:
            treatment = TREATMENTS.get(goal.kind)
            treated = f"({treatment.trait} ?o) (is{treatment.state.capitalize()} ?o) " if treatment else ""
            return f"(exists (?r - receptacle ?o - object) (and {there} {treated}{placed.format(o='?o')}))"
