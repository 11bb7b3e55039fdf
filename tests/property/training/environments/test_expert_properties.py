"""The expert wins from every state to which another agent leads it."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from qguide.training.environments.alfworld.engines.python import PythonEnvironment
from qguide.training.environments.alfworld.expert.expert import AlfWorldExpert
from qguide.training.environments.alfworld.game.game import AlfWorldGame, Goal, GoalKind, Item, Receptacle
from qguide.training.trajectory import parse_action

MAX_STEPS = 120
INTERFERENCES = st.dictionaries(st.integers(0, 30), st.integers(0, 99), max_size=10)
GOALS: dict[GoalKind, str] = {
    "pick_and_place_simple": "put some mug on shelf.",
    "pick_two_obj_and_place": "put two mug in shelf.",
    "look_at_obj_in_light": "look at mug under the desklamp.",
    "pick_clean_then_place_in_recep": "put a clean mug in shelf.",
    "pick_heat_then_place_in_recep": "heat some mug and put it in shelf.",
    "pick_cool_then_place_in_recep": "put a cool mug in shelf.",
}


def studio(kind: GoalKind) -> AlfWorldGame:
    """One room for every goal; cabinets and shelves share their locations."""
    mug = Item("mug 1", "mug", "loc 3", True, cleanable=True, heatable=True, coolable=True)
    looking = kind == "look_at_obj_in_light"
    return AlfWorldGame(
        task=f"Your task is to: {GOALS[kind]}",
        goal=Goal(kind, "mug", None if looking else "shelf", "desklamp" if looking else None),
        start="loc 0",
        receptacles=(
            Receptacle("cabinet 2", "cabinet", "loc 1", openable=True, contents=("mug 2",)),
            Receptacle("cabinet 1", "cabinet", "loc 1", openable=True, contents=("book 1",)),
            Receptacle("desk 1", "desk", "loc 2", contents=("book 2", "desklamp 1")),
            Receptacle("fridge 1", "fridge", "loc 3", openable=True, contents=("mug 1",)),
            Receptacle("microwave 1", "microwave", "loc 4", openable=True),
            Receptacle("shelf 2", "shelf", "loc 5"),
            Receptacle("shelf 1", "shelf", "loc 5"),
            Receptacle("sinkbasin 1", "sinkbasin", "loc 6"),
        ),
        items=(
            Item("book 2", "book", "loc 2", pickupable=True),
            Item("book 1", "book", "loc 1", pickupable=True),
            Item("desklamp 1", "desklamp", "loc 2", toggleable=True),
            replace(mug, name="mug 2", location="loc 1"),
            mug,
        ),
        can_contain=frozenset(
            (place, item)
            for place in ("cabinet", "desk", "fridge", "microwave", "shelf", "sinkbasin")
            for item in ("book", "mug")
        ),
    )


@given(kind=st.sampled_from(list(GOALS)), interferences=INTERFERENCES)
def test_the_expert_recovers_from_any_interference(kind: GoalKind, interferences: dict[int, int]) -> None:
    environment, expert = PythonEnvironment(studio(kind)), AlfWorldExpert()
    observation = environment.reset()
    for step in range(MAX_STEPS):
        action = parse_action(expert.reply(observation))
        if step in interferences:
            actions = [*environment.admissible_actions(), "dance", "go to shelf 9"]
            action = actions[interferences[step] % len(actions)]
            expert.follow(f"Thought: Let me try.\nAction: {action}")
        result = environment.step(action)
        if result.terminated:
            return
        observation = result.observation
    raise AssertionError(f"not won in {MAX_STEPS} steps")


@given(kind=st.sampled_from(list(GOALS)), mistaken=st.sets(st.integers(0, 30)), rng=st.randoms())
def test_the_expert_recovers_from_its_own_mistakes(kind: GoalKind, mistaken: set[int], rng: Random) -> None:
    environment, expert = PythonEnvironment(studio(kind)), AlfWorldExpert()
    observation = environment.reset()
    for step in range(MAX_STEPS):
        reply = expert.reply(observation)
        if step in mistaken:
            reply = expert.deviate(rng)
        result = environment.step(parse_action(reply))
        if result.terminated:
            return
        observation = result.observation
    raise AssertionError(f"not won in {MAX_STEPS} steps")
