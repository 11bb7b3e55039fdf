"""Input items become the turns of a chat."""

from typing import Any

import pytest

from qguide.qnet.dialects.responses_requests import to_turns
from qguide.qnet.errors import InvalidRequestError, MalformedHistoryError, UnsupportedParameterError
from qguide.server.responses.schemas import ResponsesRequest

USER: Any = {"role": "user", "content": "find the mug"}
CALL: Any = {"type": "function_call", "call_id": "c1", "name": "go", "arguments": "{}"}
OTHER: Any = CALL | {"call_id": "c2"}
RESULT: Any = {"type": "function_call_output", "call_id": "c1", "output": "a desk"}
THOUGHT: Any = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "I should go."}],
}


def turns_of(*items: Any, **more: Any) -> list[dict[str, Any]]:
    body = ResponsesRequest.model_validate({"input": list(items)} | more)
    return to_turns(body.instructions, body.input)


def said(text: str) -> Any:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}


def chat_call(call_id: str = "c1") -> Any:
    return {"id": call_id, "type": "function", "function": {"name": "go", "arguments": "{}"}}


def test_a_text_is_the_user_and_instructions_come_first_as_the_system() -> None:
    body = ResponsesRequest(input="find the mug", instructions="Be tidy.")
    assert to_turns(body.instructions, body.input) == [{"role": "system", "content": "Be tidy."}, USER]


@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
def test_an_easy_message_keeps_its_role(role: str) -> None:
    assert turns_of({"role": role, "content": "x"}) == [{"role": role, "content": "x"}]


def test_one_text_part_is_a_string_and_several_are_parts() -> None:
    part = {"type": "input_text", "text": "find"}
    chat_part = {"type": "text", "text": "find"}
    assert turns_of({"role": "user", "content": [part]}) == [{"role": "user", "content": "find"}]
    assert turns_of({"role": "user", "content": [part, part]})[0]["content"] == [chat_part] * 2
    marked = part | {"cache_control": {"type": "ephemeral"}}
    kept = chat_part | {"cache_control": {"type": "ephemeral"}}
    assert turns_of({"role": "user", "content": [marked]})[0]["content"] == [kept]


def test_images_and_files_are_passed_on_as_a_chat_has_them() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}
    file = {"type": "input_file", "filename": "a.pdf", "file_data": "AA=="}
    [turn] = turns_of({"role": "user", "content": [image, file]})
    assert turn["content"] == [
        {"type": "image_url", "image_url": {"url": image["image_url"], "detail": "low"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "AA=="}},
    ]


def test_what_the_policy_said_at_once_is_one_turn() -> None:
    turns = turns_of(USER, THOUGHT, said("I go."), CALL, OTHER, RESULT)
    assert turns[1:] == [
        {
            "role": "assistant",
            "content": "I go.",
            "reasoning_content": "I should go.",
            "tool_calls": [chat_call("c1"), chat_call("c2")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a desk"},
    ]


def test_reasoning_and_text_between_calls_that_wait_join_their_turn() -> None:
    turns = turns_of(USER, CALL, THOUGHT, said("And there."), OTHER, RESULT)
    assert [turn["role"] for turn in turns] == ["user", "assistant", "tool"]
    assert turns[1]["content"] == "And there."
    assert len(turns[1]["tool_calls"]) == 2


def test_two_messages_are_two_turns_and_each_result_ends_its_own() -> None:
    turns = turns_of(said("One"), said("2"), CALL, RESULT, OTHER, RESULT | {"call_id": "c2"})
    roles = [turn["role"] for turn in turns]
    assert roles == ["assistant", "assistant", "tool", "assistant", "tool"]
    assert [turn.get("content") for turn in turns[:2]] == ["One", "2"]


def test_images_of_results_come_after_them_because_a_chats_results_are_texts() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    seen = RESULT | {"output": [{"type": "input_text", "text": "a photo"}, image]}
    turns = turns_of(USER, CALL, OTHER, seen, RESULT | {"call_id": "c2"}, said("Done."))
    assert [turn["role"] for turn in turns[2:]] == ["tool", "tool", "user", "assistant"]
    assert turns[2]["content"] == "a photo"
    assert turns[4]["content"] == [{"type": "image_url", "image_url": {"url": image["image_url"]}}]


@pytest.mark.parametrize(
    ("items", "roles"),
    [
        ([USER, CALL, USER, RESULT, said("Done.")], "user user assistant tool assistant"),
        ([USER, CALL, OTHER, RESULT, USER, RESULT | {"call_id": "c2"}], "user assistant tool tool user"),
        ([USER, CALL, RESULT, said("Done."), USER, RESULT], "user assistant tool assistant user"),
        ([USER, CALL, USER, said("Done.")], "user assistant user assistant"),
    ],
)
def test_results_come_once_and_right_after_their_calls(items: list[Any], roles: str) -> None:
    assert [turn["role"] for turn in turns_of(*items)] == roles.split()


def test_reasoning_that_only_openai_reads_is_left_out() -> None:
    encrypted = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    assert turns_of(USER, encrypted, said("Done.")) == [USER, {"role": "assistant", "content": "Done."}]


def test_a_summary_of_this_servers_goes_back_as_the_thoughts_that_it_is() -> None:
    thoughts = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}
    assert turns_of(USER, thoughts, said("Done."))[1]["reasoning_content"] == "Hm."


def test_a_call_into_a_namespace_has_its_name_in_a_chat() -> None:
    [turn] = turns_of(CALL | {"namespace": "agents"})
    assert turn["tool_calls"][0]["function"]["name"] == "agents__go"


def test_custom_tools_and_outputs_in_parts() -> None:
    call = {"type": "custom_tool_call", "call_id": "c", "name": "shell", "input": "ls"}
    output = [{"type": "input_text", "text": "a"}]
    result = {"type": "custom_tool_call_output", "call_id": "c", "output": output}
    assert turns_of(call, result) == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "shell", "input": "ls"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "a"},
    ]


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"role": "user"}, "input[1] (message) has no content"),
        ({"content": "x"}, "input[1] (message) has no role"),
        ({"type": "function_call", "name": "go"}, "input[1] (function_call) has no arguments"),
        (RESULT | {"call_id": None}, "input[1] (function_call_output) has no call_id"),
        (RESULT | {"output": {"a": 1}}, "input[1].output is an object; send a text or a list of parts"),
    ],
)
def test_an_item_without_what_it_needs_is_explained(item: Any, said: str) -> None:
    with pytest.raises(MalformedHistoryError) as refused:
        turns_of(USER, item)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"type": "item_reference", "id": "msg_1"}, "input[1] refers to an item of an earlier"),
        ({"type": "web_search_call", "id": "ws_1"}, "has the type 'web_search_call'"),
        (
            {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]},
            "input[1].content[0] is of type 'input_image'",
        ),
    ],
)
def test_what_needs_more_than_a_chat_is_refused(item: Any, said: str) -> None:
    with pytest.raises(UnsupportedParameterError) as refused:
        turns_of(USER, item)
    assert said in str(refused.value)
    assert isinstance(refused.value, InvalidRequestError)
    assert refused.value.parameter == "input"


def test_reasoning_alone_has_a_text_that_is_empty() -> None:
    thought = {"role": "assistant", "content": "", "reasoning_content": "I should go."}
    assert turns_of(THOUGHT, USER, THOUGHT) == [thought, USER, thought]
