"""Windows of histories: they fit, keep the task and the newest turns, and cut between exchanges."""

from hypothesis import given
from hypothesis import strategies as st

from qguide.qnet.decision.history_window import (
    RequestSize,
    least_tokens,
    skipped_exchanges,
    task_exchanges,
    window_of,
)
from qguide.qnet.rendering.message_rows import exchanges
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
def test_a_window_fits_and_is_the_task_and_the_newest_turns(
    history: History, room: int, data: st.DataObject
) -> None:
    tokens = _tokens(history, data)
    task = task_exchanges(history)
    skipped = skipped_exchanges(tokens, task=task, room=room)
    least = least_tokens(RequestSize(tokens, 0, room), task=task)
    assert (skipped is None) == (least > room)
    if skipped is None:
        return
    assert sum(tokens) - sum(tokens[task : task + skipped]) <= room
    assert task + skipped < len(tokens) or not skipped
    shorter, window = window_of(history, tokens, task=task, skipped=skipped)
    before = next(i + 1 for i, message in enumerate(history) if message.role == "user")
    assert shorter[:before] == history[:before]
    kept = len(shorter) - before
    assert shorter[before:] == history[len(history) - kept :]
    assert window.read_messages + window.left_out_messages == len(history)
    assert window.left_out_tokens == sum(tokens[task : task + skipped])


@given(histories(), ROOM, st.data())
def test_no_tool_call_is_parted_from_its_results(
    history: History, room: int, data: st.DataObject
) -> None:
    tokens = _tokens(history, data)
    task = task_exchanges(history)
    skipped = skipped_exchanges(tokens, task=task, room=room)
    if skipped is None:
        return
    shorter, _ = window_of(history, tokens, task=task, skipped=skipped)
    calls = [call.id for message in shorter for call in message.tool_calls]
    results = [message.tool_call_id for message in shorter if message.role == "tool"]
    assert calls == results
    assert all(message in history for message in shorter)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), ROOM)
def test_a_window_moves_only_when_it_overflows_and_then_to_half_of_the_room(
    tokens: list[int], room: int
) -> None:
    room += tokens[0]
    begins = [skipped_exchanges(tokens[: end + 1], task=1, room=room) for end in range(len(tokens))]
    for end in range(1, len(tokens)):
        former, now = begins[end - 1], begins[end]
        if former is None or now is None:
            continue
        continued = tokens[0] + sum(tokens[1 + former : end + 1])
        assert now >= former
        if continued <= room:
            assert now == former
        else:
            left = sum(tokens[1 + now : end + 1])
            assert left <= max((room - tokens[0]) // 2, tokens[end])


def test_a_history_without_a_users_message_has_its_opening_as_the_task() -> None:
    history = (SYSTEM, Message("assistant", "go"), Message("tool", "seen"))
    assert task_exchanges(history) == 1


def test_rooms_leave_place_for_the_candidates() -> None:
    assert RequestSize([], 100, 1000).rooms == [875, 750, 500]
    assert RequestSize([], 200, 1000).rooms == [750, 500]
    assert RequestSize([], 700, 1000).rooms == [300]
