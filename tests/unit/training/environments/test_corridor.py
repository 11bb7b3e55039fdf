"""The corridor as a small but complete game."""

import pytest

from qguide.qnet.errors import EnvironmentFailureError
from qguide.training.environments.corridor import Corridor, CorridorEnvironment, CorridorSuite


@pytest.mark.parametrize("seed", range(40))
def test_the_solution_wins_with_its_last_action(seed: int) -> None:
    corridor = Corridor.of_seed(seed)
    environment = CorridorEnvironment(corridor)
    environment.reset()
    results = [environment.step(action) for action in corridor.solution()]
    assert all(result.valid for result in results)
    assert [result.reward for result in results] == [0.0] * (len(results) - 1) + [1.0]
    assert [result.terminated for result in results] == [False] * (len(results) - 1) + [True]
    with pytest.raises(EnvironmentFailureError, match=r"^step\('look'\): .*reset"):
        environment.step("look")


def test_a_locked_door_stays_shut_without_the_key() -> None:
    environment = CorridorEnvironment(Corridor(rooms=3, start=1, door=1, key=2))
    assert environment.reset().endswith("Your task is to: take the key and open the door.")
    assert not environment.step("open door").valid
    assert environment.step("go right").observation == "You are in room 2. You see a key."
    assert environment.step("take key").observation == "You pick up the key."
    assert not environment.step("take key").valid
    assert environment.step("go left").observation == "You are in room 1. You see a door."
    assert environment.step("open door").terminated


def test_walls_end_the_corridor() -> None:
    environment = CorridorEnvironment(Corridor(rooms=3, start=1, door=3))
    environment.reset()
    assert not environment.step("go left").valid
    assert environment.step("go right").valid


def test_both_goal_types_occur() -> None:
    kinds = {task.kind for task in CorridorSuite(count=4).tasks}
    assert kinds == {"reach_door", "fetch_key_then_reach_door"}
