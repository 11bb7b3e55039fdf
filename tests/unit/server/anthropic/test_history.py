"""Content blocks become the messages of a chat completion, and tool inputs are JSON objects."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qguide.qnet.dialects.anthropic_answers import input_of
from qguide.qnet.dialects.anthropic_requests import INVALID_JSON, SIGNATURE, chat_turns
from qguide.qnet.errors import MalformedHistoryError
from qguide.server.anthropic.schemas import MessagesRequest

PIXEL = {"type": "base64", "media_type": "image/png", "data": "aGk="}


def turns(*messages: Any, system: Any = None) -> list[dict[str, Any]]:
    body = MessagesRequest.model_validate({"max_tokens": 1, "messages": list(messages), "system": system})
    return chat_turns(body.system, body.messages)


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def call(id_: str = "toolu_1", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": "go", "input": arguments}


def result(content: Any = "there", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content} | more


def test_texts_stay_and_system_comes_first() -> None:
    said = turns({"role": "user", "content": "find it"}, system="Be brief.")
    assert said == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "find it"}]


def test_blocks_of_text_are_one_text() -> None:
    cached = text("a") | {"cache_control": {"type": "ephemeral"}}
    said = turns(user(cached, text("b")), assistant(text("c"), text("d")), system=[cached, text("b")])
    assert [turn["content"] for turn in said] == ["a\nb", "a\nb", "cd"]


def test_a_call_and_its_result_are_turns_of_their_own() -> None:
    said = turns(user(text("find it")), assistant(text("Well."), call(to="desk")), user(result(), text("go on")))
    assert said[1:] == [
        {
            "role": "assistant",
            "content": "Well.",
            "tool_calls": [
                {"id": "toolu_1", "type": "function", "function": {"name": "go", "arguments": '{"to": "desk"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "there"},
        {"role": "user", "content": "go on"},
    ]


def test_a_call_alone_has_no_content() -> None:
    assert turns(assistant(call()))[0]["content"] is None


@pytest.mark.parametrize(
    ("content", "more", "read"),
    [
        ("there", {}, "there"),
        (None, {}, ""),
        ([text("a"), text("b")], {}, "a\nb"),
        ("no such desk", {"is_error": True}, "Error: no such desk"),
        ("Error: no such desk", {"is_error": True}, "Error: no such desk"),
        ("fine", {"is_error": False}, "fine"),
    ],
)
def test_a_result_is_a_text_that_says_if_it_is_an_error(content: Any, more: Any, read: str) -> None:
    assert [turn["content"] for turn in turns(user(result(content, **more)))] == [read]


def test_an_image_of_a_result_is_in_the_users_message_after_it() -> None:
    image = {"type": "image", "source": PIXEL}
    said = turns(user(result([text("a photo"), image]), text("what is it?")))
    assert said == [
        {"role": "tool", "tool_call_id": "toolu_1", "content": "a photo"},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}, text("what is it?")],
        },
    ]


def test_images_and_documents_are_parts() -> None:
    address = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    plain = {"type": "document", "source": {"type": "text", "data": "a note"}}
    pdf = {"type": "document", "source": PIXEL | {"media_type": "application/pdf"}}
    [turn] = turns(user(address, plain, pdf))
    url, note, file = turn["content"]
    assert url == {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    assert note == text("a note")
    assert file["file"]["file_data"] == "data:application/pdf;base64,aGk="


def test_a_search_result_is_its_title_source_and_text() -> None:
    found = {
        "type": "search_result",
        "source": "https://example.org/mugs",
        "title": "Mugs",
        "content": [text("in the kitchen"), text("on a shelf")],
        "citations": {"enabled": True},
    }
    read = "Mugs (https://example.org/mugs)\nin the kitchen\non a shelf"
    assert turns(user(found), user(result([found]))) == [
        {"role": "user", "content": read},
        {"role": "tool", "tool_call_id": "toolu_1", "content": read},
    ]


def test_a_document_of_blocks_is_their_text() -> None:
    source = {"type": "content", "content": [text("a"), text("b")]}
    [turn] = turns(user({"type": "document", "source": source}))
    assert turn["content"] == "a\nb"


def test_thoughts_go_back_only_to_the_upstream_that_had_them() -> None:
    ours = {"type": "thinking", "thinking": "hm", "signature": f"{SIGNATURE}reasoning_content"}
    foreign = {"type": "thinking", "thinking": "secret", "signature": "EqQBCkYIBhgC"}
    redacted = {"type": "redacted_thinking", "data": "x"}
    [turn] = turns(assistant(foreign, redacted, ours, text("look")))
    assert turn == {"role": "assistant", "content": "look", "reasoning_content": "hm"}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (user({"type": "text"}), r"^messages\[0\]\.content\[0\]\.text\b"),
        (user(call()), r"content\[0\] .*'tool_use'"),
        (user({"type": "search_result"}), r"content\[0\]\.source .*missing"),
        (user({"type": "image", "source": "a.png"}), r"content\[0\]\.source .*search_result.*`type`"),
        (
            user({"type": "document", "source": {"type": "content", "content": [{"type": "image"}]}}),
            r"source\.content .*'image'",
        ),
        (user({"type": "server_tool_use"}), r"content\[0\] .*'server_tool_use'"),
        (assistant(result()), r"content\[0\] .*'tool_result'"),
        (assistant({"type": "tool_use", "name": "go"}), r"content\[0\]\.id\b"),
        (user({"type": "tool_result"}), r"content\[0\]\.tool_use_id\b"),
        (user({"type": "image", "source": {"type": "file"}}), "source .*'file'; .*base64.*url"),
        (user({"type": "document", "source": {"type": "url"}}), "source .*'url'; .*base64.*content"),
    ],
)
def test_a_block_that_cannot_be_translated_is_named(message: Any, said: str) -> None:
    with pytest.raises(MalformedHistoryError, match=said):
        turns(message)


@pytest.mark.parametrize(("arguments", "read"), [('{"to": "desk"}', {"to": "desk"}), ("", {}), (" ", {})])
def test_arguments_are_an_object(arguments: str, read: Any) -> None:
    assert input_of(arguments) == (read, True)


DEEP = '{"x": ' * 96 + "1" + "}" * 96
BEYOND_JSON = ['{"x": NaN}', '{"x": -Infinity}', '{"x": 1e999}', r'{"x": "\ud800"}', DEEP]


@pytest.mark.parametrize("arguments", ['{"to": "de', "[1]", "null", "desk", "[" * 100_000, *BEYOND_JSON])
def test_arguments_that_are_no_object_come_and_go_as_they_were_written(arguments: str) -> None:
    read, is_object = input_of(arguments)
    assert (read, is_object) == ({INVALID_JSON: arguments}, False)
    [turn] = turns(assistant(call(**read)))
    assert turn["tool_calls"][0]["function"]["arguments"] == arguments


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text()))
def test_an_object_goes_back_as_it_was(arguments: dict[str, Any]) -> None:
    [turn] = turns(assistant({"type": "tool_use", "id": "1", "name": "go", "input": arguments}))
    read, is_object = input_of(turn["tool_calls"][0]["function"]["arguments"])
    if arguments.keys() != {INVALID_JSON}:
        assert (read, is_object) == (arguments, True)
