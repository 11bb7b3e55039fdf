"""The same episode in the dialects of today becomes the same messages."""

import json
from typing import Any

import pytest

from qguide.qnet.errors import RecordError
from qguide.qnet.types import Message, ToolCall
from qguide.training.recordings.episode import read_message_record
from qguide.training.recordings.fields import Fields
from qguide.training.recordings.turns import THOUGHTS, read_turns

EPISODE = (
    Message("system", "You find things."),
    Message("user", "Find the mug."),
    Message("assistant", "I look.", (ToolCall("look", '{"at": "desk"}'),)),
    Message("tool", "A mug."),
    Message("assistant", "It is on the desk."),
)
SYSTEM, USER, DONE = (
    {"role": message.role, "content": message.content} for message in (EPISODE[0], EPISODE[1], EPISODE[4])
)
CHAT = [
    SYSTEM,
    USER,
    {
        "role": "assistant",
        "content": [{"type": "text", "text": "I look."}],
        "reasoning_content": "Desks have mugs.",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "desk"}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "A mug."},
    DONE,
]
BLOCKS = [
    SYSTEM,
    USER,
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Desks have mugs.", "signature": "sig"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "desk"}},
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "A mug."}]}],
    },
    {"role": "assistant", "content": [{"type": "text", "text": "It is on the desk."}]},
]
ITEMS = [
    {"role": "developer", "content": "You find things."},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Find the mug."}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "…"},
    {
        "type": "message",
        "role": "assistant",
        "id": "msg_1",
        "status": "completed",
        "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
    },
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": '{"at": "desk"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "A mug."},
    {
        "object": "response",
        "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is on the desk."}]}
        ],
    },
]
LANGCHAIN = [
    {"type": "system", "content": "You find things."},
    {"type": "human", "content": "Find the mug."},
    {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", "AIMessage"],
        "kwargs": {
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "desk"}},
            ],
            "tool_calls": [{"name": "look", "args": {"at": "desk"}, "id": "c1", "type": "tool_call"}],
        },
    },
    {"type": "tool", "content": "A mug.", "tool_call_id": "c1"},
    {"type": "ai", "content": "It is on the desk.", "tool_calls": []},
]

CHOICES = [SYSTEM, USER, {"index": 0, "finish_reason": "tool_calls", "message": CHAT[2]}, *CHAT[3:]]
"""OpenPipe's ART keeps replies as choices."""


@pytest.mark.parametrize("messages", [CHAT, BLOCKS, LANGCHAIN, CHOICES], ids=["chat", "blocks", "langchain", "choices"])
def test_every_dialect_is_the_same_episode(messages: list[Any]) -> None:
    episode = read_message_record({"messages": messages, "reward": 1}, Fields())
    assert episode.messages == EPISODE


def test_responses_items_are_the_same_episode() -> None:
    messages = read_message_record({"messages": ITEMS, "reward": 1}, Fields()).messages
    assert messages == (Message("developer", "You find things."), *EPISODE[1:])


def test_a_call_and_its_result_share_their_id_in_every_dialect() -> None:
    for messages in (CHAT, BLOCKS, ITEMS, LANGCHAIN):
        read = read_message_record({"messages": messages, "reward": 1}, Fields()).messages
        assert (read[2].tool_calls[0].id, read[3].tool_call_id) == ("c1", "c1")


@pytest.mark.parametrize("messages", [CHAT, BLOCKS], ids=["chat", "blocks"])
def test_thoughts_are_left_out_and_counted(messages: list[Any]) -> None:
    assert read_turns(messages).left_out == {THOUGHTS: 1}


def test_one_list_may_mix_dialects() -> None:
    mixed = [*BLOCKS[:3], CHAT[3], ITEMS[-1]]
    assert read_message_record({"messages": mixed, "reward": 1}, Fields()).messages == EPISODE


def test_texts_of_published_trajectories_of_swe_agent_are_their_content() -> None:
    said = [
        {"role": "system", "text": None, "system_prompt": "You find things.", "cutoff_date": "2023"},
        {"role": "user", "text": "Find the mug.", "system_prompt": None},
        {"role": "ai", "text": "It is on the desk."},
    ]
    assert read_turns(said).messages == [EPISODE[0], EPISODE[1], EPISODE[4]]


def test_instructions_beside_the_messages_come_first() -> None:
    for name, messages in (("system", BLOCKS[1:]), ("instructions", CHAT[1:])):
        record = {name: "You find things.", "messages": messages, "reward": 1}
        assert read_message_record(record, Fields()).messages == EPISODE
    parts = [{"type": "text", "text": "You find things."}]
    record = {"system": parts, "messages": CHAT, "reward": 1}
    assert read_message_record(record, Fields()).messages == EPISODE


def test_messages_may_be_json_text_at_a_nested_place() -> None:
    record = {"trace": {"input": json.dumps(CHAT)}, "info": {"reward": True, "case": 7}}
    fields = Fields(reward="info.reward", task="info.case", messages="trace.input")
    episode = read_message_record(record, fields)
    assert (episode.messages, episode.reward, episode.task_id) == (EPISODE, 1.0, "7")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            {"role": "user", "content": [{"type": "tool_result", "content": "SECRET"}]},
            "messages[0].content[0].tool_use_id is missing",
        ),
        (
            {"role": "user", "content": [{"type": "tool_use"}, {"type": "image", "data": "SECRET"}]},
            "messages[0].content[1] is neither text nor a call",
        ),
        ({"type": "function_call", "name": "SECRET"}, "messages[0] (function_call) has no arguments"),
        (
            {"role": "user", "content": [{"type": "input_text"}, {"type": "SECRET"}]},
            "messages[0].content[0] (input_text) has no text",
        ),
        (
            {"role": "user", "content": [{"type": "SECRET", "text": "SECRET"}]},
            "messages[0] has a part that is not text",
        ),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "id": 7, "name": "SECRET"}]},
            "messages[0].content[0].id: Input should be a valid string",
        ),
        ("SECRET", "messages[0] is not an object"),
    ],
)
def test_a_malformed_message_is_named_without_its_text(message: Any, reason: str) -> None:
    with pytest.raises(RecordError) as caught:
        read_turns([message])
    assert reason in str(caught.value)
    assert "SECRET" not in str(caught.value)
