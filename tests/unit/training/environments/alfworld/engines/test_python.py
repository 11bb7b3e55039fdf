"""The Python engine's texts are ALFWorld's."""

from dataclasses import replace
from typing import Any

import pytest

from qguide.qnet.errors import EnvironmentFailureError
from qguide.training.environment import StepResult
from qguide.training.environments.alfworld.engines.python import PythonEnvironment
from qguide.training.environments.alfworld.game.game import AlfWorldGame, Goal, Item, Receptacle
from qguide.training.environments.alfworld.game.observation import NOTHING_HAPPENS


def item(name: str, location: str | None, **properties: Any) -> Item:
    """A pickupable item whose kind is its name without the number."""
    return replace(Item(name, name.split()[0], location, pickupable=True), **properties)


def kitchen(goal: Goal | None = None) -> AlfWorldGame:
    """Small enough to follow each sentence by eye; a clean apple is wanted in the fridge."""
    return AlfWorldGame(
        task="Your task is to: put a clean apple in fridge.",
        goal=goal or Goal("pick_clean_then_place_in_recep", "apple", "fridge"),
        start="loc 9",
        receptacles=(
            Receptacle("cabinet 2", "cabinet", "loc 1", openable=True, contents=("mug 1",)),
            Receptacle("cabinet 1", "cabinet", "loc 1", openable=True),
            Receptacle("countertop 1", "countertop", "loc 2", contents=("apple 2", "apple 1", "knife 1")),
            Receptacle("desk 1", "desk", "loc 3", contents=("desklamp 1",)),
            Receptacle("fridge 1", "fridge", "loc 4", openable=True, contents=("tomato 1",)),
            Receptacle("microwave 1", "microwave", "loc 5", openable=True),
            Receptacle("shelf 1", "shelf", "loc 2"),
            Receptacle("sinkbasin 1", "sinkbasin", "loc 6"),
        ),
        items=(
            item("apple 2", "loc 2", cleanable=True, heatable=True, coolable=True, sliceable=True),
            item("apple 1", "loc 2", cleanable=True, heatable=True, coolable=True, sliceable=True),
            Item("desklamp 1", "desklamp", "loc 3", toggleable=True),
            item("knife 1", "loc 2", cleanable=True),
            item("mug 1", "loc 1", cleanable=True, inner=("spoon 1",)),
            item("spoon 1", None),
            item("tomato 1", "loc 4", heatable=True, sliceable=True),
        ),
        can_contain=frozenset(
            (place, thing)
            for place in ("cabinet", "countertop", "fridge", "microwave", "shelf", "sinkbasin")
            for thing in ("apple", "knife", "mug", "tomato")
        ),
    )


ROOM = (
    "You are in the middle of a room. Looking quickly around you, you see a cabinet 2,"
    " a cabinet 1, a countertop 1, a desk 1, a fridge 1, a microwave 1, a shelf 1,"
    " and a sinkbasin 1."
)


def play(*actions: str, goal: Goal | None = None) -> tuple[PythonEnvironment, StepResult]:
    """The environment after some actions, and what the last one did."""
    environment = PythonEnvironment(kitchen(goal))
    environment.reset()
    for action in actions:
        result = environment.step(action)
    return environment, result


def says(*actions: str) -> str:
    return play(*actions)[1].observation


def test_reset_shows_the_room_and_the_task() -> None:
    task = "Your task is to: put a clean apple in fridge."
    assert PythonEnvironment(kitchen()).reset() == f"{ROOM}\n\n{task}"


def test_looking_where_the_agent_starts_shows_nothing() -> None:
    nothing = "You are in the middle of a room. Looking quickly around you, you see nothing."
    assert says("look") == nothing


def test_looking_at_a_shared_place_names_all_that_it_faces() -> None:
    facing = "You are facing the countertop 1, and shelf 1. Next to it, you see nothing."
    assert says("go to shelf 1", "look") == facing


def test_what_moved_between_neighbours_is_seen_beside_them() -> None:
    moved = ("go to shelf 1", "take apple 1 from countertop 1", "put apple 1 in/on shelf 1")
    assert says(*moved, "look").endswith("Next to it, you see a apple 1.")
    back = ("take apple 1 from shelf 1", "put apple 1 in/on countertop 1")
    assert says(*moved, *back, "look").endswith("Next to it, you see a apple 1.")


def test_going_shows_what_lies_there() -> None:
    assert says("go to countertop 1") == (
        "You arrive at loc 2. On the countertop 1, you see a apple 2, a apple 1, and a knife 1."
    )
    assert says("go to shelf 1") == "You arrive at loc 2. On the shelf 1, you see nothing."
    assert says("go to fridge 1") == "You arrive at loc 4. The fridge 1 is closed."


@pytest.mark.parametrize(
    "action", ["go to countertop 1", "go to shelf 1", "go to shelf 9", "go shelf 1", "take", "", "dance"]
)
def test_what_means_nothing_changes_nothing(action: str) -> None:
    environment, result = play("go to countertop 1", action)
    assert result == StepResult(NOTHING_HAPPENS, 0.0, terminated=False, valid=False)
    assert "take apple 1 from countertop 1" in environment.admissible_actions()


def test_open_and_close() -> None:
    opened = ("go to fridge 1", "open fridge 1")
    assert says(*opened) == "You open the fridge 1. The fridge 1 is open. In it, you see a tomato 1."
    assert says(*opened, "open fridge 1") == NOTHING_HAPPENS
    assert says(*opened, "close fridge 1") == "You close the fridge 1."
    assert says("go to fridge 1", "take tomato 1 from fridge 1") == NOTHING_HAPPENS


def test_taking_putting_and_the_inventory() -> None:
    taken = ("go to countertop 1", "take apple 1 from countertop 1")
    assert says("inventory") == "You are not carrying anything."
    assert says(*taken) == "You pick up the apple 1 from the countertop 1."
    assert says(*taken, "inventory") == "You are carrying: a apple 1."
    assert says(*taken, "take apple 2 from countertop 1") == NOTHING_HAPPENS
    assert says(*taken, "put apple 1 in/on shelf 1") == "You put the apple 1 in/on the shelf 1."
    assert says(*taken, "move apple 1 to shelf 1") == NOTHING_HAPPENS
    assert says(*taken, "go to desk 1", "put apple 1 in/on desk 1") == NOTHING_HAPPENS


def test_contents_are_listed_in_the_order_of_the_game() -> None:
    swapped = (
        "go to countertop 1",
        "take apple 2 from countertop 1",
        "put apple 2 in/on countertop 1",
        "examine countertop 1",
    )
    assert says(*swapped) == "On the countertop 1, you see a apple 2, a apple 1, and a knife 1."


TAKE_APPLE = ("go to countertop 1", "take apple 1 from countertop 1")
CLEAN = (*TAKE_APPLE, "go to sinkbasin 1", "clean apple 1 with sinkbasin 1")
HEAT = ("go to microwave 1", "heat apple 1 with microwave 1")
COOL = ("go to fridge 1", "cool apple 1 with fridge 1")


@pytest.mark.parametrize(
    ("actions", "sight"),
    [
        (TAKE_APPLE, "There's nothing special about apple 1."),
        (CLEAN, "This is a clean apple 1."),
        ((*TAKE_APPLE, *HEAT), "This is a hot apple 1."),
        ((*TAKE_APPLE, *COOL), "This is a cold apple 1."),
        ((*CLEAN, *HEAT), "This is a hot and clean apple 1."),
        ((*CLEAN, *HEAT, *COOL), "This is a cool and clean apple 1."),
    ],
)
def test_examining_tells_what_was_done_to_it(actions: tuple[str, ...], sight: str) -> None:
    assert says(*actions, "examine apple 1") == sight


def test_treating_says_what_with() -> None:
    assert says(*CLEAN) == "You clean the apple 1 using the sinkbasin 1."
    assert says(*TAKE_APPLE, *HEAT) == "You heat the apple 1 using the microwave 1."
    assert says(*TAKE_APPLE, *COOL) == "You cool the apple 1 using the fridge 1."
    assert says(*CLEAN, "heat apple 1 with sinkbasin 1") == NOTHING_HAPPENS


def test_only_what_is_in_the_hand_can_be_examined() -> None:
    assert says("go to countertop 1", "examine apple 1") == NOTHING_HAPPENS
    mug = ("go to cabinet 2", "open cabinet 2", "take mug 1 from cabinet 2", "examine mug 1")
    assert says(*mug) == "This is a normal mug 1. In it, you see a spoon 1."


def test_slicing_needs_a_knife_and_shows() -> None:
    knife = ("go to countertop 1", "take knife 1 from countertop 1")
    assert says("go to countertop 1", "slice apple 1 with knife 1") == NOTHING_HAPPENS
    sliced = (*knife, "slice apple 1 with knife 1")
    assert says(*sliced) == "You sliced the apple 1 with the knife 1."
    swapped = ("put knife 1 in/on countertop 1", "take apple 1 from countertop 1")
    assert says(*sliced, *swapped, "examine apple 1") == "This is a sliced apple 1."
    chilled = says(*sliced, *swapped, *COOL, "examine apple 1")
    assert chilled == "This is a cool sliced apple 1."


def test_a_lamp_reads_as_turned_on_each_time() -> None:
    assert says("go to desk 1", "use desklamp 1") == "You turn on the desklamp 1."
    assert says("go to desk 1", "use desklamp 1", "use desklamp 1").startswith("You turn on")
    assert says("use desklamp 1") == NOTHING_HAPPENS


IN_FRIDGE = ("go to fridge 1", "open fridge 1", "put apple 1 in/on fridge 1")
ON_SHELF = (*TAKE_APPLE, "put apple 1 in/on shelf 1", "take apple 2 from countertop 1", "put apple 2 in/on shelf 1")
UNDER_LAMP = ("go to desk 1", "use desklamp 1")


@pytest.mark.parametrize(
    ("goal", "actions"),
    [
        (Goal("pick_and_place_simple", "apple", "fridge"), (*TAKE_APPLE, *IN_FRIDGE)),
        (Goal("pick_clean_then_place_in_recep", "apple", "fridge"), (*CLEAN, *IN_FRIDGE)),
        (Goal("pick_heat_then_place_in_recep", "apple", "fridge"), (*TAKE_APPLE, *HEAT, *IN_FRIDGE)),
        (Goal("pick_cool_then_place_in_recep", "apple", "fridge"), (*TAKE_APPLE, *COOL, *IN_FRIDGE[1:])),
        (Goal("pick_two_obj_and_place", "apple", "shelf"), ON_SHELF),
        (Goal("look_at_obj_in_light", "apple", None, "desklamp"), (*TAKE_APPLE, *UNDER_LAMP)),
    ],
    ids=lambda value: value.kind if isinstance(value, Goal) else "",
)
def test_each_goal_is_won_by_its_last_action_alone(goal: Goal, actions: tuple[str, ...]) -> None:
    _, before = play(*actions[:-1], goal=goal)
    environment, last = play(*actions, goal=goal)
    assert (before.reward, before.terminated) == (0.0, False)
    assert (last.reward, last.terminated, environment.won) == (1.0, True, True)


def test_heat_undoes_cold() -> None:
    goal = Goal("pick_cool_then_place_in_recep", "apple", "fridge")
    _, result = play(*TAKE_APPLE, *COOL, *HEAT, *IN_FRIDGE, goal=goal)
    assert not result.terminated


def test_an_episode_that_is_over_takes_no_action() -> None:
    environment, _ = play(*CLEAN, *IN_FRIDGE)
    with pytest.raises(EnvironmentFailureError, match=r"^step\('look'\): .*over;"):
        environment.step("look")
    with pytest.raises(EnvironmentFailureError, match=r"^step\('look'\): .*reset;"):
        PythonEnvironment(kitchen()).step("look")
