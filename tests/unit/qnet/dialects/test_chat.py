"""Fields that are read from OpenAI's formats; the others are passed on."""

import json
from typing import Any

import pytest

from qguide.qnet.chat_messages import reworded, text_of, wire_message
from qguide.qnet.decision.selection import distinct
from qguide.qnet.policies.upstream_dialects import CHAT
from qguide.qnet.types import spent_on
from qguide.qnet.work import NOTHING, TokenUsage

CACHED: Any = {"cache_control": {"type": "ephemeral"}}
IMAGE: Any = {"type": "image_url", "image_url": {"url": "data:"}}


def said(*messages: dict[str, Any]) -> list[Any]:
    choices = [{"message": {"role": "assistant", "content": None} | m} for m in messages]
    return CHAT.read_answer(json.dumps({"choices": choices}).encode()).candidates


def test_calls_of_functions_differ_where_they_would_do_something_else() -> None:
    calls = [{"name": "go", "arguments": f'{{"to": {place}}}'} for place in (1, 2, 1)]
    drawn = [candidate.message for candidate in said(*({"function_call": call} for call in calls))]
    assert distinct(drawn).index == (0, 1, 0)
    assert drawn[0].text == 'Action: go({"to": 1})'
    assert wire_message(drawn[1]) == {"role": "assistant", "content": None, "function_call": calls[1]}


def test_all_that_an_upstream_says_of_a_turn_is_handed_on() -> None:
    function = {"name": "go", "arguments": "{}", "strict": True}
    call = {"id": "c", "type": "function", "function": function, "extra_content": {"google": 1}}
    message = {"role": "assistant", "content": "So.", "tool_calls": [call], "reasoning": "hm"}
    [candidate] = said(message)
    assert wire_message(candidate.message) == message


def test_what_an_upstream_leaves_empty_is_left_out() -> None:
    [candidate] = said({"content": "So.", "tool_calls": [], "function_call": None, "audio": None})
    assert wire_message(candidate.message) == {"role": "assistant", "content": "So."}


@pytest.mark.parametrize(
    ("content", "start", "end", "left"),
    [
        ("find the mug", 5, 12, "find it"),
        ([{"type": "text", "text": "find the mug"}], 5, 12, [{"type": "text", "text": "find it"}]),
        (
            [{"type": "text", "text": "a"} | CACHED, IMAGE, {"type": "text", "text": "b c"}],
            2,
            3,
            [{"type": "text", "text": "a"} | CACHED, IMAGE, {"type": "text", "text": "it c"}],
        ),
        (
            [{"type": "text", "text": "a b"} | CACHED, IMAGE, {"type": "text", "text": "c"}],
            2,
            5,
            [{"type": "text", "text": "a it"} | CACHED, IMAGE],
        ),
    ],
    ids=["a text", "a part", "the second text", "across parts"],
)
def test_other_words_stand_in_the_same_place(content: Any, start: int, end: int, left: Any) -> None:
    assert reworded(content, start, end, "it") == left
    whole = text_of(content)
    assert text_of(left) == whole[:start] + "it" + whole[end:]


def answer(message: dict[str, Any], **more: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant"} | message, "finish_reason": "stop"}
    return json.dumps({"choices": [choice]} | more).encode()


def test_content_in_parts_is_its_text() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "Action: "},
        {"type": "text", "text": "look"},
    ]
    [candidate] = CHAT.read_answer(answer({"content": parts})).candidates
    assert candidate.message.content == "Action: look"


def test_calls_of_functions_and_custom_tools_are_read_and_written_alike() -> None:
    calls = [
        {"id": "a", "type": "function", "function": {"name": "go", "arguments": "{}"}},
        {"id": "b", "type": "custom", "custom": {"name": "shell", "input": "ls {"}},
    ]
    [candidate] = CHAT.read_answer(answer({"content": None, "tool_calls": calls})).candidates
    assert wire_message(candidate.message)["tool_calls"] == calls
    assert candidate.message.text == "Action: go({})\nAction: shell(ls {)"


def test_what_else_is_said_stands_with_whom_it_is_said_of() -> None:
    said = {"message": {"role": "assistant", "content": "go"}, "finish_reason": "stop"}
    body = {
        "id": "a",
        "model": "m",
        "system_fingerprint": "fp",
        "service_tier": None,
        "choices": [said | {"stop_reason": 7}, said | {"index": 1, "token_ids": [3, 4]}],
        "usage": {"completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 1, "audio_tokens": None}},
    }
    first, second = CHAT.read_answer(json.dumps(body).encode()).candidates
    assert (first.extra, second.extra) == ({"stop_reason": 7}, {"token_ids": [3, 4]})
    assert first.answer_extra == second.answer_extra == {"system_fingerprint": "fp"}
    assert spent_on([first, second, first]).completion_details == {"reasoning_tokens": 2}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b'{"choices": []}', True),
        (b"[]", False),
        (b"<html>", False),
        (b"[" * 99_999, False),
        (b'{"x": ' + b"[" * 99_999, True),
        (b'{"x": ' + b"9" * 5_000 + b"}", True),
    ],
)
def test_an_object_is_told_from_garbage(said: bytes, expected: bool) -> None:
    assert CHAT.read_answer(said).is_object is expected
    assert CHAT.read_answer(said).candidates == []


def test_half_a_character_is_one_that_was_lost() -> None:
    call = {"id": "\ud800", "type": "function", "function": {"name": "g\udfffo", "arguments": "{}"}}
    message = {"content": "a\ud800 \U0001f600", "tool_calls": [call], "x": {"\udc00": ["\ud800"]}}
    body = {"choices": [{"message": message, "finish_reason": "st\ud800p"}]}
    raw = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    for said in (json.dumps(body).encode(), raw):
        [candidate] = CHAT.read_answer(said).candidates
        json.dumps([candidate.message.wire, candidate.finish_reason], ensure_ascii=False).encode()
        assert candidate.message.content.endswith("\ufffd \U0001f600")
        assert candidate.message.tool_calls[0].name.startswith("g\ufffd")


@pytest.mark.parametrize(("levels", "read"), [(90, 1), (96, 1), (97, 0), (945, 0), (99_999, 0)])
def test_what_could_not_be_said_again_is_no_completion(levels: int, read: int) -> None:
    nested = "[" * levels + "]" * levels
    said = f'{{"choices": [{{"message": {{"content": "a", "x": {nested}}}}}]}}'.encode()
    assert len(CHAT.read_answer(said).candidates) == read
    assert CHAT.read_answer(said).is_object


def test_a_bill_stands_without_a_completion() -> None:
    said = b'{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}'
    assert CHAT.read_answer(said).usage == TokenUsage(7, 3)
    assert (
        CHAT.read_answer(b'{"choices": []}').usage
        == CHAT.read_answer(b"<html>").usage
        == CHAT.read_answer(b"[1]").usage
        == NOTHING
    )


def test_what_json_has_no_word_for_is_null() -> None:
    logprobs = '{"content": [{"token": "a", "logprob": -Infinity}, {"token": "b", "logprob": -1e400}]}'
    said = (
        '{"choices": [{"message": {"content": null, "tool_calls": [{"id": "a", "function": '
        f'{{"name": "go", "arguments": null}}}}]}}, "logprobs": {logprobs}}}], '
        '"usage": {"completion_tokens": null, "completion_tokens_details": {"by": {"tool": 1}}}}'
    )
    [candidate] = CHAT.read_answer(said.encode()).candidates
    assert candidate.logprobs == {"content": [{"token": "a", "logprob": None}, {"token": "b", "logprob": None}]}
    assert candidate.message.tool_calls[0].arguments == ""
    assert candidate.completion_tokens == 0


@pytest.mark.parametrize(("stated", "read"), [(100, 10), (-1, 0), (4, 4), (None, 0)])
def test_cached_tokens_are_read_as_a_part_of_the_prompt(stated: int | None, read: int) -> None:
    usage = {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": stated}}
    completion = CHAT.read_answer(json.dumps({"choices": [], "usage": usage}).encode())
    assert completion.usage.cached_tokens == read


@pytest.mark.parametrize(
    ("stated", "read"), [(0.25, 0.25), (0, 0.0), (None, None), (-1, None), ("dear", None), (True, None)]
)
def test_the_cost_is_read_where_the_upstream_tells_it(stated: object, read: float | None) -> None:
    usage = {"prompt_tokens": 10, "cost": stated}
    completion = CHAT.read_answer(json.dumps({"choices": [], "usage": usage}).encode())
    assert completion.usage.cost == read


@pytest.mark.parametrize(
    ("message", "logprobs", "logprob"),
    [
        ({"content": "I go."}, [-0.5, -1.25], -1.75),
        ({"content": "I go."}, [-0.5, None], None),
        ({"content": "I go."}, ["low"], None),
        ({"content": "I go."}, [], None),
        ({"function_call": {"name": "go", "arguments": "{}"}}, [-0.5], None),
    ],
)
def test_a_text_whose_tokens_have_logprobs_has_a_log_likelihood(
    message: dict[str, Any], logprobs: list[Any], logprob: float | None
) -> None:
    tokens = [{"token": "t", "logprob": log} for log in logprobs]
    choice = {"message": {"role": "assistant"} | message, "logprobs": {"content": tokens}}
    [candidate] = CHAT.read_answer(json.dumps({"choices": [choice]}).encode()).candidates
    assert candidate.logprob == logprob
