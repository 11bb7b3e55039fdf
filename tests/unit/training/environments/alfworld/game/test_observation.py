"""Texts of the games become tasks, rooms and scenes."""

import pytest

from qguide.qnet.errors import EnvironmentFailureError
from qguide.training.environments.alfworld.game.observation import (
    HouseTask,
    Scene,
    read_receptacles,
    read_scene,
    read_task,
)
from qguide.training.environments.alfworld.game.statistics import load_statistics

ROOM = (
    "You are in the middle of a room. Looking quickly around you, you see a bed 1, a desk 2,"
    " and an ottoman 1.\n\nYour task is to: put a soapbar in toilet."
)


@pytest.mark.parametrize(
    ("sentence", "kind", "item", "target"),
    [
        ("examine the cd with the desklamp.", "look_at_obj_in_light", "cd", "desklamp"),
        ("look at cd under the desklamp.", "look_at_obj_in_light", "cd", "desklamp"),
        ("put a clean mug in shelf.", "pick_clean_then_place_in_recep", "mug", "shelf"),
        ("heat some mug and put it in shelf.", "pick_heat_then_place_in_recep", "mug", "shelf"),
        ("put a cool mug in shelf.", "pick_cool_then_place_in_recep", "mug", "shelf"),
        ("find two mug and put them in shelf.", "pick_two_obj_and_place", "mug", "shelf"),
        ("put some mug on shelf.", "pick_and_place_simple", "mug", "shelf"),
        ("put a toiletpaper in toilet.", "pick_and_place_simple", "toiletpaper", "toilet"),
    ],
)
def test_a_task_sentence_says_what_goes_where(sentence: str, kind: str, item: str, target: str) -> None:
    task = read_task(f"A room.\n\nYour task is to: {sentence}")
    assert (task.kind, task.item, task.target) == (kind, item, target)


def test_every_wording_of_the_train_games_is_understood() -> None:
    for kind, wordings in load_statistics().wordings.items():
        for wording in wordings:
            expected = HouseTask(kind, "mug", "desk")  # type: ignore[arg-type]
            assert read_task(wording.format(item="mug", target="desk")) == expected


def test_a_text_without_a_known_task_is_refused() -> None:
    with pytest.raises(EnvironmentFailureError, match="no ALFWorld task"):
        read_task("Your task is to: sing a song.")


def test_the_room_lists_its_receptacles_and_not_the_task() -> None:
    assert read_receptacles(ROOM) == ("bed 1", "desk 2", "ottoman 1")


@pytest.mark.parametrize(
    ("observation", "scene"),
    [
        (
            "You arrive at loc 3. On the desk 1, you see a cd 2, a mug 1, and an egg 3.",
            Scene("desk 1", contents=("cd 2", "mug 1", "egg 3")),
        ),
        ("On the desk 1, you see nothing.", Scene("desk 1", contents=())),
        ("You arrive at loc 3. The safe 1 is closed.", Scene("safe 1")),
        ("You open the safe 1. The safe 1 is open. In it, you see a cd 1.", Scene("safe 1", contents=("cd 1",))),
        ("You pick up the cd 1 from the safe 1.", Scene(taken=("cd 1", "safe 1"))),
        ("You put the cd 1 in/on the safe 1.", Scene(put=("cd 1", "safe 1"))),
        ("You heat the egg 1 using the microwave 1.", Scene(treated=("heat", "egg 1"))),
        ("You are carrying: a cd 1.", Scene()),
        ("This is a normal box 1. In it, you see a cd 1.", Scene()),
    ],
)
def test_an_observation_says_what_is_seen_or_done(observation: str, scene: Scene) -> None:
    assert read_scene(observation) == scene
