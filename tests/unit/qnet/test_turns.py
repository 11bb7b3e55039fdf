"""Callers take turns by the device time that they were given."""

from qguide.qnet.turns import FairQueue


def in_order(queue: FairQueue[str]) -> list[str]:
    return [item for _, item in queue]


def test_a_callers_items_stay_in_order() -> None:
    queue = FairQueue[str]()
    for item in ("1", "2", "3"):
        queue.add("ada", item)
    assert in_order(queue) == ["1", "2", "3"]


def test_the_least_served_caller_is_first() -> None:
    queue = FairQueue[str]()
    for caller, item in (("ada", "a1"), ("bob", "b1"), ("ada", "a2")):
        queue.add(caller, item)
    queue.charge({"ada": 2.0, "bob": 1.0})
    assert in_order(queue) == ["b1", "a1", "a2"]
    queue.charge({"bob": 2.0})
    assert in_order(queue) == ["a1", "a2", "b1"]


def test_who_idles_saves_no_time_up() -> None:
    queue = FairQueue[str]()
    queue.charge({"bob": 1.0})
    queue.charge({"ada": 100.0})
    queue.serve(queue.used_s("ada"))
    queue.add("bob", "b1")
    assert queue.used_s("bob") == queue.used_s("ada")


def test_a_newcomer_waits_for_one_turn_however_many_callers_are_busy() -> None:
    queue = FairQueue[str]()
    busy = ("ada", "bob", "carl")
    for caller in busy:
        queue.add(caller, caller)
    queue.serve(queue.used_s("ada"))
    queue.add("dora", "dora")
    queue.charge({"ada": 1.0})
    for caller in ("bob", "carl"):
        queue.charge({caller: 0.1})
    assert in_order(queue)[0] == "dora"


def test_a_flood_makes_room_for_others_and_not_for_itself() -> None:
    queue = FairQueue[str]()
    for item in ("1", "2", "3"):
        queue.add("ada", item)
    assert queue.longer_than("ada") is None
    assert queue.longer_than("bob") == "ada"
    assert queue.pop_newest("ada") == "3"
    queue.add("bob", "b1")
    assert queue.longer_than("bob") is None
