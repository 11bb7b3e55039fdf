"""Messages and ShareGPT conversations become episodes, or are refused with a reason."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from qguide.qnet.errors import RecordError
from qguide.qnet.types import Message, ToolCall
from qguide.training.recordings.episode import read_message_record
from qguide.training.recordings.fields import Fields
from qguide.training.recordings.formats.data_sets import read_sharegpt_record

TASK = {"role": "user", "content": "Find the mug."}


def call(name: str, arguments: object, call_id: str | None = "c1") -> dict[str, Any]:
    """A call in OpenAI's shape."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def record(*messages: Mapping[str, Any], **fields: object) -> dict[str, object]:
    """A row of messages with the reward 1."""
    return {"messages": [TASK, *messages], "reward": 1.0, **fields}


def refusal(row: Mapping[str, object]) -> str:
    """The reason to refuse a row of messages."""
    with pytest.raises(RecordError) as caught:
        read_message_record(row, Fields())
    return str(caught.value)


def test_tool_calls_and_their_results_stay_messages() -> None:
    row = record(
        {"role": "assistant", "content": None, "tool_calls": [call("look", {"at": "desk"})]},
        {"role": "tool", "tool_call_id": "c1", "content": "A mug."},
        {"role": "assistant", "content": "It is on the desk."},
        task_id="mug/1",
        tools=[{"type": "function"}],
    )
    episode = read_message_record(row, Fields())
    assert episode.messages == (
        Message("user", "Find the mug."),
        Message("assistant", "", (ToolCall("look", '{"at": "desk"}'),)),
        Message("tool", "A mug."),
        Message("assistant", "It is on the desk."),
    )
    assert episode.task_id == "mug/1"
    assert episode.messages[2].tool_call_id == "c1"


def test_missing_ids_of_calls_are_filled_in_order() -> None:
    calls = [call("a", "{}", None), call("b", "{}", None)]
    row = record(
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "one"},
        {"role": "tool", "content": "two"},
    )
    messages = read_message_record(row, Fields()).messages
    ids = [one.id for one in messages[1].tool_calls]
    assert [message.tool_call_id for message in messages[2:]] == ids
    assert len(set(ids)) == 2


def test_consecutive_replies_are_one() -> None:
    row = record(
        {"role": "assistant", "content": "I look."},
        {"role": "assistant", "content": None, "tool_calls": [call("look", "{}")]},
    )
    (_, reply) = read_message_record(row, Fields()).messages
    assert reply == Message("assistant", "I look.", (ToolCall("look", "{}"),))


def test_a_reply_of_weight_0_is_a_mistake() -> None:
    row = record(
        {"role": "assistant", "content": "No.", "weight": 0},
        {"role": "user", "content": "Try."},
        {"role": "assistant", "content": "Yes.", "weight": 1},
    )
    assert read_message_record(row, Fields()).mistakes == (0,)


def test_without_a_task_id_the_first_messages_identify_the_task() -> None:
    one, same = (read_message_record(record({"role": "assistant", "content": said}), Fields()) for said in ("A", "B"))
    other = read_message_record(
        record({"role": "system", "content": "Be kind."}, {"role": "assistant", "content": "A"}), Fields()
    )
    assert one.task_id == same.task_id != other.task_id


@pytest.mark.parametrize(("said", "reward"), [(True, 1.0), (False, 0.0), (3, 3.0), (-0.5, -0.5)])
def test_a_named_reward_is_a_number_or_a_success(said: object, reward: float) -> None:
    row = record({"role": "assistant", "content": "A"}, solved=said)
    assert read_message_record(row, Fields(reward="solved")).reward == reward


def test_a_reward_that_nobody_named_is_a_number() -> None:
    row = record({"role": "assistant", "content": "A"}, reward=True)
    assert "'reward' is true; a reward is a number" in refusal(row)
    assert "--reward-key reward" in refusal(row)


def test_the_operator_names_the_fields() -> None:
    row = record({"role": "assistant", "content": "A"}, score=0.25, case=17, reward="unknown")
    episode = read_message_record(row, Fields(reward="score", task="case"))
    assert (episode.reward, episode.task_id) == (0.25, "17")


def test_a_default_reward_is_for_records_without_one() -> None:
    row = {"messages": [TASK, {"role": "assistant", "content": "A"}]}
    assert "no 'reward'" in refusal(row)
    assert read_message_record(row, Fields(default_reward=0.5)).reward == 0.5


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": "hello", "reward": 1}, "messages is not a list"),
        ({"messages": [], "reward": 1}, "no messages"),
        (record(), "no reply"),
        (record({"role": "assistant", "content": "A"}, reward="good"), "type str"),
        (record({"role": "assistant", "content": "A"}, reward=float("inf")), "between"),
        (record({"role": "assistant", "content": "  "}), "turn 1 (assistant) is empty"),
        (record({"role": "alien", "content": "SECRET"}), "messages[1].role"),
        (record({"role": "assistant", "content": 7}), "messages[1].content"),
        (record({"role": "user", "content": [{"type": "image_url"}]}), "messages[1] has a part that is not text"),
        (
            record(
                {"role": "assistant", "content": "", "tool_calls": [call("look", "{}")]},
                {"role": "tool", "tool_call_id": "other", "content": "SECRET"},
            ),
            "turn 2 is the result of a tool call that the reply did not make",
        ),
        (
            record(
                {"role": "assistant", "content": "", "tool_calls": [call("look", "{}")]},
                {"role": "user", "content": "SECRET"},
            ),
            "turn 2 (user) comes before the results of 1 tool calls",
        ),
        (
            {"messages": [{"role": "assistant", "content": "SECRET"}, TASK], "reward": 1},
            "begins with the role 'assistant'",
        ),
        (record({"role": "assistant", "content": "A"}, task_id=["SECRET"]), "type list"),
        (record({"role": "assistant", "content": "A"}, task_id="x" * 2000), "2,000 characters"),
    ],
)
def test_a_malformed_row_is_refused_without_its_text(row: Mapping[str, object], reason: str) -> None:
    said = refusal(row)
    assert reason in said
    assert "SECRET" not in said


def conversation(*turns: Mapping[str, object], **fields: object) -> dict[str, object]:
    """A ShareGPT row with the reward 1."""
    return {"conversations": list(turns), "reward": 1, **fields}


def test_a_framing_reply_of_agent_gym_is_not_imitated() -> None:
    row = conversation(
        {"from": "human", "loss": None, "value": "You shop."},
        {"from": "gpt", "loss": False, "value": "OK."},
        {"from": "human", "loss": None, "value": "Find a lamp."},
        {"from": "gpt", "loss": True, "value": "Thought: Search.\nAction:\nsearch[lamp]"},
        item_id="webshop_17",
    )
    episode = read_sharegpt_record(row, Fields())
    assert episode.mistakes == (0,)
    assert episode.task_id == "webshop_17"
    assert [message.role for message in episode.messages] == ["user", "assistant"] * 2


def test_calls_of_functions_become_tool_calls() -> None:
    called = json.dumps({"name": "look", "arguments": {"at": "desk"}})
    row = conversation(
        {"from": "human", "value": "Find the mug."},
        {"from": "function_call", "value": called},
        {"from": "observation", "value": "A mug."},
        {"from": "gpt", "value": "There."},
        system="You find things.",
    )
    messages = read_sharegpt_record(row, Fields()).messages
    assert messages[0] == Message("system", "You find things.")
    assert messages[2].tool_calls == (ToolCall("look", '{"at": "desk"}'),)
    assert messages[3].role == "tool"


def test_an_observation_without_a_call_is_a_users_turn() -> None:
    row = conversation(
        {"from": "human", "value": "Find the mug."},
        {"from": "gpt", "value": "Action: look"},
        {"from": "observation", "value": "A mug."},
    )
    assert read_sharegpt_record(row, Fields()).messages[2] == Message("user", "A mug.")


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ("SECRET", "conversations[1] is not an object"),
        ({"from": "SECRET", "value": ""}, "conversations[1].from"),
        ({"from": "gpt", "value": None}, "conversations[1].value"),
        ({"from": "function_call", "value": "SECRET"}, "conversations[1].value is not a call"),
        (
            {"from": "function_call", "value": '{"name": "\\ud800", "arguments": "SECRET"}'},
            "conversations[1].value is not a call as JSON: it holds text that is not UTF-8",
        ),
    ],
)
def test_a_malformed_conversation_is_refused_without_its_text(turn: Any, reason: str) -> None:
    with pytest.raises(RecordError) as caught:
        read_sharegpt_record(conversation({"from": "human", "value": "Task"}, turn), Fields())
    assert reason in str(caught.value)
    assert "SECRET" not in str(caught.value)
