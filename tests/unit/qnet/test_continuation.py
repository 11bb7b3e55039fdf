"""A history continues an episode if the agent's actions stand in it where they stood."""

import pytest

from qguide.qnet.continuation import KnownState
from qguide.qnet.types import History, Message, ToolCall

SYSTEM = Message("system", "Be brief. It is 9:00.")
TASK = Message("user", "Find the mug.")


def turn(number: int, *, seen: str = "Nothing.") -> History:
    """An action and what the agent observed."""
    return Message("assistant", f"open {number}"), Message("user", seen)


def turns(first: int, last: int, **more: str) -> History:
    """Some of them, one after the other."""
    return tuple(message for number in range(first, last + 1) for message in turn(number, **more))


def news(before: History, history: History, *, answered: str = "look") -> int | None:
    """Messages of a history that are known after one of before."""
    return KnownState.of(before, answered).news(history)


BEFORE = (SYSTEM, TASK, *turns(1, 6))
NEXT = turn(7)


@pytest.mark.parametrize(
    "kept",
    [
        BEFORE,
        (Message("system", "Be brief. It is 9:01."), TASK, *turns(1, 6)),
        (TASK, *turns(1, 6)),
        (SYSTEM, SYSTEM, TASK, *turns(1, 6)),
        (SYSTEM, Message("user", "Find the mug. <reminder>Be quick.</reminder>"), *turns(1, 6)),
        (SYSTEM, TASK, *turns(1, 4, seen="[cleared]"), *turns(5, 6)),
        (SYSTEM, TASK, *turns(1, 5), Message("assistant", " open  6\n"), Message("tool", "Nothing.")),
        (SYSTEM, TASK, *turns(1, 6), Message("user", "<reminder>Be quick.</reminder>")),
    ],
    ids=["nothing", "system", "no system", "two systems", "task", "cut", "space", "another message"],
)
def test_only_the_agents_actions_have_to_stay(kept: History) -> None:
    assert news(BEFORE, (*kept, *NEXT)) == len(kept)


@pytest.mark.parametrize(
    "kept",
    [(SYSTEM, TASK, *turns(3, 6)), turns(3, 6), (SYSTEM, TASK, *turn(1), Message("user", "A summary."), *turns(3, 6))],
)
def test_older_actions_may_be_left_out_if_the_next_one_is_the_answer(kept: History) -> None:
    assert news(BEFORE, (*kept, *NEXT), answered="open 7") == len(kept)
    assert news(BEFORE, (*kept, *NEXT)) is None


@pytest.mark.parametrize(
    "history",
    [
        (SYSTEM, TASK, *turns(4, 6), *NEXT),
        (SYSTEM, Message("user", "A summary of what was done.")),
        (SYSTEM, Message("user", "A summary of what was done."), *NEXT),
        (Message("system", "Write a title."), TASK),
        (Message("system", "Search."), Message("user", "Find a subagent's file."), *NEXT),
        (SYSTEM, TASK, *turns(1, 5), *turn(9), *NEXT),
        (*BEFORE, Message("user", "Write a summary.")),
        (SYSTEM, TASK, *turns(1, 5), *turn(6, seen="Another answer.")),
        (*BEFORE, NEXT[0]),
        (),
    ],
)
def test_another_conversation_and_a_summary_do_not_continue(history: History) -> None:
    assert news(BEFORE, history, answered="open 7") is None


def test_the_same_state_again_has_no_news_and_must_not_differ() -> None:
    assert news(BEFORE, BEFORE) == len(BEFORE)
    assert news((SYSTEM, TASK), (SYSTEM, Message("user", "Find the pen."))) is None
    assert news((SYSTEM, TASK), (Message("system", "Write a title."), TASK)) is None
    image = {"type": "image_url", "image_url": {"url": "data:,a"}}
    shown = Message("user", "Find the mug.", wire={"content": [image]})
    assert news((SYSTEM, TASK), (SYSTEM, shown)) is None


def test_the_first_action_is_the_answer_or_all_before_it_is_as_it_was() -> None:
    later = (Message("system", "It is 9:01."), TASK, *turn(1))
    assert news((SYSTEM, TASK), later, answered="open 1") == 2
    assert news((SYSTEM, TASK), later, answered="open 2") is None
    assert news((SYSTEM, TASK), (SYSTEM, TASK, *turn(1)), answered="open 2") == 2
    call = Message("assistant", "", (ToolCall("open", '{"at":  1}', "c1"),))
    assert news((SYSTEM, TASK), (TASK, call, turn(1)[1]), answered=call.text) == 1


def test_actions_of_which_no_step_was_asked_are_news_too() -> None:
    assert news((SYSTEM, TASK, *turn(1)), (SYSTEM, TASK, *turns(1, 3))) == 4


def test_equal_actions_are_told_apart_by_their_number() -> None:
    look = (Message("assistant", "look"), Message("user", "Nothing."))
    assert news((TASK, *look * 6), (SYSTEM, TASK, *look * 7), answered="look") == 14
    assert news((TASK, *look * 6), (TASK, *look * 6), answered="look") == 13
