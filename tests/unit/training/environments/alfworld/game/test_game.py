"""Game files become games, or their mistakes are explained."""

import json
from pathlib import Path

import pytest

from qguide.qnet.errors import InvalidGameError
from qguide.training.environments.alfworld.engines.python import PythonEnvironment
from qguide.training.environments.alfworld.game.game import (
    GOAL_KINDS,
    AlfWorldGame,
    Goal,
    Item,
    Receptacle,
    load_game,
    parse_game,
    scan_game,
)

DOMAIN = """
(:action CleanObject
    :precondition (and (cleanable ?o) (or ;(receptacleType ?r SinkType)
        (receptacleType ?r SinkBasinType)))
    :effect (isClean ?o))
(:action HeatObject
    :precondition (receptacleType ?r MicrowaveType)
    :effect (isHot ?o))
(:action CoolObject
    :precondition (receptacleType ?r FridgeType)
    :effect (isCool ?o))
"""
GRAMMAR = '{"rhs": "Your task is to: put some apple on desk."} "put {o} in/on {r}"'
PROBLEM = """
(:init
    (atLocation agent1 loc_bar_9)
    (receptacleAtLocation Desk_bar__plus_02 loc_bar_1)
    (receptacleAtLocation Desk_bar__minus_01 loc_bar_1)
    (receptacleAtLocation Sink_bar_1_bar_SinkBasin loc_bar_2)
    (receptacleType Desk_bar__plus_02 DeskType)
    (receptacleType Desk_bar__minus_01 DeskType)
    (receptacleType Sink_bar_1_bar_SinkBasin SinkBasinType)
    (openable Desk_bar__plus_02)
    (objectType Apple_bar_2 AppleType)
    (objectType Apple_bar_1 AppleType)
    (objectType Bowl_bar_1 BowlType)
    (objectAtLocation Apple_bar_1 loc_bar_1)
    (inReceptacle Apple_bar_2 Desk_bar__plus_02)
    (inReceptacle Apple_bar_1 Desk_bar__plus_02)
    (pickupable Apple_bar_1)
    (isReceptacleObject Bowl_bar_1)
    (inReceptacleObject Apple_bar_2 Bowl_bar_1)
    (isCool Apple_bar_1)
    (canContain DeskType AppleType))
(:goal (exists (?r - receptacle) (exists (?o - object)
    (and (inReceptacle ?o ?r) (objectType ?o AppleType) (receptacleType ?r DeskType)))))
"""


def data(**changes: object) -> dict[str, object]:
    whole = {"pddl_domain": DOMAIN, "grammar": GRAMMAR, "pddl_problem": PROBLEM, "solvable": True}
    return {**whole, **changes}


def test_names_count_down_in_the_order_of_the_ids() -> None:
    game = parse_game(data())
    assert [r.name for r in game.receptacles] == ["desk 2", "desk 1", "sinkbasin 1"]
    assert [i.name for i in game.items] == ["apple 2", "apple 1", "bowl 1"]


def test_facts_become_properties() -> None:
    game = parse_game(data())
    full_desk = game.receptacles[1]
    assert full_desk == Receptacle("desk 1", "desk", "loc 3", openable=True, contents=("apple 2", "apple 1"))
    apple = Item("apple 2", "apple", "loc 3", pickupable=True, states=frozenset({"cool"}))
    assert game.items[0] == apple
    assert game.items[2].inner == ("apple 1",)
    assert (game.start, game.can_contain) == ("loc 1", frozenset({("desk", "apple")}))
    assert game.task == "Your task is to: put some apple on desk."
    assert game.goal == Goal("pick_and_place_simple", "apple", "desk")


def test_appliances_are_those_that_the_domain_names() -> None:
    game = parse_game(data())
    appliances = (game.cleaners, game.heaters, game.coolers)
    assert [set(kinds) for kinds in appliances] == [{"sinkbasin"}, {"microwave"}, {"fridge"}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grammar": None}, "^grammar .*NoneType, .*pddl_domain, grammar, pddl_problem"),
        ({"grammar": "{}"}, "'Your task is to: …'"),
        ({"grammar": GRAMMAR.replace("put {o} in/on {r}", "move {o} to {r}")}, "engine=textworld"),
        ({"pddl_problem": "(define)"}, "lacks"),
        ({"pddl_problem": PROBLEM.replace("(atLocation", "(near")}, "0 facts .*atlocation .* 1;"),
        (
            {"pddl_problem": PROBLEM.partition("(:goal")[0] + "(:goal (and))"},
            r"\[\] .*\[\] .*pick_and_place_simple, .*engine=textworld",
        ),
        ({"pddl_problem": PROBLEM.replace("(openable", "(holds a")}, "hand; .*engine=textworld"),
        ({"pddl_problem": PROBLEM.replace("Apple_bar_2 Desk", "Pear_bar_2 Sofa")}, "contra|contains"),
        ({"pddl_problem": PROBLEM.replace("canContain DeskType", "canContain")}, "contradict"),
    ],
)
def test_a_malformed_game_says_what_is_wrong(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidGameError, match=message):
        parse_game(data(**changes))


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_malformed_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "game.tw-pddl"
    path.write_text(text)
    with pytest.raises(InvalidGameError, match=r"game\.tw-pddl"):
        load_game(path)
    with pytest.raises(InvalidGameError, match=r"game\.tw-pddl"):
        scan_game(path)


def test_scanning_tells_solvable_and_kind(tmp_path: Path) -> None:
    path = tmp_path / "game.tw-pddl"
    path.write_text(json.dumps(data(solvable=False)))
    assert scan_game(path) == (False, "pick_and_place_simple")


def test_names_used_twice_are_refused() -> None:
    apple = Item("apple 1", "apple", None)
    goal = Goal("pick_and_place_simple", "apple", "desk")
    with pytest.raises(InvalidGameError, match="apple 1"):
        AlfWorldGame("Your task is to: …", goal, "loc 1", (), (apple, apple), frozenset())


def test_contents_must_be_items_of_the_game() -> None:
    desk = Receptacle("desk 1", "desk", "loc 1", contents=("apple 1",))
    goal = Goal("pick_and_place_simple", "apple", "desk")
    with pytest.raises(InvalidGameError, match=r"desk 1 .*\['apple 1'\], .*items$"):
        AlfWorldGame("Your task is to: …", goal, "loc 2", (desk,), (), frozenset())


def test_every_game_loads_and_its_folder_tells_the_same_goal(games_dir: Path) -> None:
    paths = sorted(games_dir.rglob("game.tw-pddl"))
    games = {path: load_game(path) for path in paths}
    for path, game in games.items():
        kind, item_kind, _, place, _ = path.parts[-3].split("-")
        goal = game.goal
        wanted = goal.lamp_kind if kind == "look_at_obj_in_light" else goal.receptacle_kind
        assert (goal.kind, goal.item_kind, wanted) == (kind, item_kind.lower(), place.lower())
        assert scan_game(path) == (True, kind)
        assert not PythonEnvironment(game).reset().startswith("-=")
    assert {game.goal.kind for game in games.values()} == set(GOAL_KINDS)
