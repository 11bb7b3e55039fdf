"""Windows of histories: they fit, keep the task and the newest turns, and cut between exchanges."""

from hypothesis import given
from hypothesis import strategies as st

from qguide.qnet.decision.history_window import (
    RequestSize,
    least_tokens,
    left_out_exchanges,
    requests_in,
    task_exchanges,
    window_of,
)
from qguide.qnet.rendering.chat_template import exchanges
from qguide.qnet.types import History, Message, ToolCall

SYSTEM = Message("system", "You find things.")
USER = Message("user", "Find the mug.")
TASKS = ((USER,), (SYSTEM, USER), (Message("assistant", "Hello."), USER))
ROOM = st.integers(1, 200)


def _turn(number: int, calls: int, says: bool) -> History:
    if not calls:
        return Message("assistant", f"go {number}"), Message("user", f"seen {number}")
    made = tuple(ToolCall("look", "{}", f"{number}-{i}") for i in range(calls))
    results = tuple(Message("tool", f"{c.id} done", tool_call_id=c.id) for c in made)
    more = (Message("user", "go on"),) if says else ()
    return (Message("assistant", "", made), *results, *more)


@st.composite
def histories(draw: st.DrawFn) -> History:
    turns = draw(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30))
    task = draw(st.sampled_from(TASKS))
    return (*task, *(m for i, turn in enumerate(turns) for m in _turn(i, *turn)))


def _tokens(history: History, data: st.DataObject) -> list[int]:
    count = len(list(exchanges(history)))
    return data.draw(st.lists(st.integers(1, 40), min_size=count, max_size=count))


@given(histories(), ROOM, st.data())
def test_a_window_fits_and_keeps_the_task_the_newest_turns_and_requests(
    history: History, room: int, data: st.DataObject
) -> None:
    tokens = _tokens(history, data)
    task, requests = task_exchanges(history), requests_in(history)
    left_out = left_out_exchanges(tokens, task=task, requests=requests, room=room)
    least = least_tokens(RequestSize(tokens, 0, room), task=task)
    assert (left_out is None) == (least > room)
    if left_out is None:
        return
    kept = [number for number in range(len(tokens)) if number not in left_out]
    assert sum(tokens[number] for number in kept) <= room
    assert kept[:task] == list(range(task))
    assert kept[-1] == len(tokens) - 1
    begin = max(left_out, default=-1) + 1
    apart = [number for number in kept if task <= number < begin]
    older = [number for number in requests if task <= number < begin]
    assert apart == older[len(older) - len(apart) :], "requests, the newest first"
    shorter, window = window_of(history, tokens, left_out=left_out)
    before = next(i + 1 for i, message in enumerate(history) if message.role == "user")
    assert shorter[:before] == history[:before]
    assert window.read_messages + window.left_out_messages == len(history)
    assert window.left_out_tokens == sum(tokens[number] for number in left_out)


@given(histories(), ROOM, st.data())
def test_no_tool_call_is_parted_from_its_results(history: History, room: int, data: st.DataObject) -> None:
    tokens = _tokens(history, data)
    task, requests = task_exchanges(history), requests_in(history)
    left_out = left_out_exchanges(tokens, task=task, requests=requests, room=room)
    if left_out is None:
        return
    shorter, _ = window_of(history, tokens, left_out=left_out)
    calls = [call.id for message in shorter for call in message.tool_calls]
    results = [message.tool_call_id for message in shorter if message.role == "tool"]
    assert calls == results
    assert all(message in history for message in shorter)


def test_the_newest_request_is_kept_and_older_ones_as_far_as_they_fit() -> None:
    look = (Message("assistant", "", (ToolCall("look", "{}", "1"),)), Message("tool", "desk"))
    asks = [(Message("assistant", "Done."), Message("user", f"task {name}")) for name in "BCD"]
    history = (SYSTEM, USER, *look, *asks[0], *look, *asks[1], *look, *asks[2], *look * 9)
    requests = requests_in(history)
    assert requests == (2, 4, 6)
    tokens = [10] * 16
    read = {}
    for room in (40, 60, 100):
        left_out = left_out_exchanges(tokens, task=1, requests=requests, room=room)
        assert left_out is not None
        shorter, _ = window_of(history, tokens, left_out=left_out)
        read[room] = [m.text for m in shorter if m.text.startswith("task")]
        assert shorter[-2:] == look
    assert read == {40: ["task D"], 60: ["task C", "task D"], 100: ["task B", "task C", "task D"]}


def test_of_two_requests_the_newer_is_kept_where_one_fits() -> None:
    assert left_out_exchanges([1, 1, 1, 1, 1, 3], task=1, requests=(3, 4), room=5) == (1, 2, 3)


def test_observations_of_agents_without_calls_are_no_requests() -> None:
    assert requests_in((USER, *_turn(1, 0, False), *_turn(2, 0, False))) == ()
    assert requests_in((USER, *_turn(1, 1, True), *_turn(2, 1, False))) == (), "beside a result"


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), ROOM)
def test_a_window_moves_only_when_it_overflows_and_then_to_half_of_the_room(tokens: list[int], room: int) -> None:
    room += tokens[0]
    begins = [left_out_exchanges(tokens[: end + 1], task=1, requests=(), room=room) for end in range(len(tokens))]
    for end in range(1, len(tokens)):
        former, now = begins[end - 1], begins[end]
        if former is None or now is None:
            continue
        continued = tokens[0] + sum(tokens[1 + len(former) : end + 1])
        assert len(now) >= len(former)
        if continued <= room:
            assert now == former
        else:
            left = sum(tokens[1 + len(now) : end + 1])
            assert left <= max((room - tokens[0]) // 2, tokens[end])


def test_a_history_without_a_users_message_has_its_opening_as_the_task() -> None:
    history = (SYSTEM, Message("assistant", "go"), Message("tool", "seen"))
    assert task_exchanges(history) == 1


def test_rooms_leave_place_for_the_candidates() -> None:
    assert RequestSize([], 100, 1000).rooms == [875, 750, 500]
    assert RequestSize([], 200, 1000).rooms == [750, 500]
    assert RequestSize([], 700, 1000).rooms == [300]
