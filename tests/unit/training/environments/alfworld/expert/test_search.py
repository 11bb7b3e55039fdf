"""The search starts where objects are most likely."""

from dataclasses import replace

from qguide.training.environments.alfworld.expert.expert import next_receptacle, search_plan
from qguide.training.environments.alfworld.game.statistics import Statistics, load_statistics


def statistics(**rates: int) -> Statistics:
    """Cups are found in so many of 1,000 receptacles of each kind; only fridges are closed."""
    return replace(
        load_statistics(),
        finds={"cup": {kind: (holding, 1000) for kind, holding in rates.items()}},
        receptacles={kind: {"all": 1} for kind in rates} | {"fridge": {"all": 1, "openable": 1}},
    )


def test_likely_kinds_come_first_and_absent_ones_are_left_out() -> None:
    known = statistics(desk=40, shelf=800, sofa=500)
    assert search_plan("cup", ["desk 1", "shelf 2", "shelf 1"], known) == ("shelf", "desk")


def test_opening_costs_a_step() -> None:
    known = statistics(fridge=300, desk=250)
    assert search_plan("cup", ["fridge 1", "desk 1"], known) == ("desk", "fridge")


def test_kinds_that_hardly_ever_hold_it_are_not_planned() -> None:
    known = statistics(desk=9, shelf=10)
    assert search_plan("cup", ["desk 1", "shelf 1"], known) == ("shelf",)


def test_a_room_only_leaves_kinds_out_of_the_order() -> None:
    known = load_statistics()
    for item in known.finds:
        everywhere = search_plan(item, [f"{kind} 1" for kind in known.receptacles], known)
        for room in known.rooms.values():
            names = [f"{kind} 1" for kind in room.receptacle_numbers]
            expected = tuple(k for k in everywhere if k in room.receptacle_numbers)
            assert search_plan(item, names, known) == expected


def test_within_a_kind_the_rooms_order_counts() -> None:
    room = ("desk 1", "shelf 2", "shelf 1", "sofa 1")
    assert next_receptacle(("shelf", "desk"), room, ()) == "shelf 2"
    assert next_receptacle(("shelf", "desk"), room, ("shelf 2",)) == "shelf 1"
    assert next_receptacle(("shelf", "desk"), room, ("shelf 2", "shelf 1", "desk 1")) == "sofa 1"
    assert next_receptacle(("shelf", "desk"), room, room) is None
