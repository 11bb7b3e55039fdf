"""The words of the online path."""

import pytest

from qguide.qnet.decision.selection import distinct
from qguide.qnet.types import Message, ToolCall


def call(arguments: str, *, name: str = "move", call_id: str = "") -> Message:
    return Message("assistant", "", (ToolCall(name, arguments, call_id),))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"to": "desk", "n": 1}', '{"n":1,\n "to":"desk"}'),
        ('{"to": "caf\\u00e9"}', '{"to": "café"}'),
        ("no json", "no json"),
    ],
)
def test_calls_that_do_the_same_are_equal_and_counted_once(one: str, other: str) -> None:
    said = call(one, call_id="call_1"), call(other, call_id="call_2")
    assert len(set(said)) == 1
    assert distinct(said).index == (0, 0)
    assert [m.tool_calls[0].arguments for m in said] == [one, other]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (call('{"to": "desk"}'), call('{"to": "shelf"}')),
        (call('{"n": 1}'), call('{"n": "1"}')),
        (call("{}"), call("{}", name="stop")),
        (call("{}"), Message("assistant", "", (ToolCall("move", "{}"),) * 2)),
        (call("{}"), Message("assistant", "Action: move({})")),
    ],
)
def test_calls_that_differ_are_different(one: Message, other: Message) -> None:
    assert one != other


def test_a_message_as_text_has_its_calls_below_what_is_said() -> None:
    said = Message("assistant", "I go.", (ToolCall("move", '{"to":"desk"}'),))
    assert said.text == 'I go.\nAction: move({"to": "desk"})'
    assert call("{}").text == "Action: move({})"
    assert Message("user", "hello").text == "hello"


def test_half_a_character_in_arguments_is_left_as_it_was_written() -> None:
    assert call('{"to": "\\ud800"}').text == 'Action: move({"to": "\\ud800"})'
