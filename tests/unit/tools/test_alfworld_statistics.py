"""Counting train games, and the counts that ship."""

from pathlib import Path

import pytest

from qguide.qnet.errors import InvalidGameError
from qguide.training.environments.alfworld.game.game import GOAL_KINDS, AlfWorldGame, Goal, Item, Receptacle
from qguide.training.environments.alfworld.game.statistics import STATISTICS_FILE, RoomStatistics, load_statistics
from tools.alfworld_statistics import count_statistics, room_kind, tally, write_statistics


def bathroom() -> AlfWorldGame:
    """Two cabinets at one place, one of them open; a box with a soap bar inside."""
    return AlfWorldGame(
        task="Your task is to: put some toiletpaper on toilet.",
        goal=Goal("pick_and_place_simple", "toiletpaper", "toilet"),
        start="loc 9",
        receptacles=(
            Receptacle("cabinet 2", "cabinet", "loc 1", True, True, ("toiletpaper 1",)),
            Receptacle("cabinet 1", "cabinet", "loc 1", True),
            Receptacle("toilet 1", "toilet", "loc 2"),
        ),
        items=(
            Item("box 1", "box", None, inner=("soapbar 1",)),
            Item("soapbar 1", "soapbar", None, pickupable=True, cleanable=True),
            Item("toiletpaper 1", "toiletpaper", "loc 1", pickupable=True),
        ),
        can_contain=frozenset({("toilet", "toiletpaper"), ("cabinet", "toiletpaper")}),
    )


def test_a_room_is_counted() -> None:
    assert tally([("bathroom", bathroom())] * 2).rooms == {
        "bathroom": RoomStatistics(
            games=2,
            receptacle_numbers={"cabinet": {"2": 2}, "toilet": {"1": 2}},
            layouts=[({"cabinet": 2, "toilet": 1}, 2)],
            item_numbers={"box": {"1": 2}, "soapbar": {"1": 2}, "toiletpaper": {"1": 2}},
            placements={"box": {"": 2}, "soapbar": {"": 2}, "toiletpaper": {"cabinet": 2}},
            shared_locations={"cabinet+cabinet": 2, "toilet": 2},
        )
    }


def test_finds_doors_and_goals_are_counted() -> None:
    counted = tally([("bathroom", bathroom())])
    assert counted.finds == {"toiletpaper": {"cabinet": (1, 2)}}
    assert counted.find_rate("toiletpaper", "cabinet") == 0.5
    assert counted.find_rate("toiletpaper", "toilet") == 0.0
    assert counted.receptacles["cabinet"] == {"all": 2, "openable": 2, "opened": 1}
    assert counted.is_openable("cabinet")
    assert not counted.is_openable("toilet")
    assert counted.items["soapbar"] == {"all": 1, "pickupable": 1, "cleanable": 1}
    assert counted.inside == {"box": {"soapbar": 1}}
    simple = {"bathroom": {"toiletpaper": {"toilet": 1}}}
    assert counted.goals == {"pick_and_place_simple": simple}
    wording = {"Your task is to: put some {item} on {target}.": 1}
    assert counted.wordings == {"pick_and_place_simple": wording}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    counted = tally([("bathroom", bathroom())])
    write_statistics(counted, tmp_path / "statistics.json")
    assert load_statistics(tmp_path / "statistics.json") == counted


@pytest.mark.parametrize(("scene", "kind"), [(1, "kitchen"), (230, "living room"), (301, "bedroom"), (430, "bathroom")])
def test_the_scene_number_tells_the_room(scene: int, kind: str) -> None:
    path = Path(f"train/pick_two_obj_and_place-Mug-None-Desk-{scene}/trial_1/game.tw-pddl")
    assert room_kind(path) == kind


def test_folders_that_say_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidGameError, match=r"task-150/trial/game\.tw-pddl: .* 1 to 430;"):
        room_kind(Path("task-150/trial/game.tw-pddl"))
    with pytest.raises(InvalidGameError, match=r"game\.tw-pddl .*train"):
        count_statistics(tmp_path)


def test_the_shipped_counts_are_of_all_train_games_and_small() -> None:
    shipped = load_statistics()
    assert "3,554 games of ALFWorld's train split" in shipped.source
    assert shipped.games == sum(room.games for room in shipped.rooms.values()) == 3554
    assert set(shipped.goals) == set(GOAL_KINDS)
    assert STATISTICS_FILE.stat().st_size < 150_000


def test_games_of_a_folder_can_be_counted(games_dir: Path) -> None:
    kitchen = min(games_dir.rglob("pick_heat_then_place_in_recep-*"))
    counted = count_statistics(kitchen)
    assert list(counted.rooms) == ["kitchen"]
    assert list(counted.goals) == ["pick_heat_then_place_in_recep"]
    assert counted.receptacles["fridge"] == {"all": 1, "openable": 1}
