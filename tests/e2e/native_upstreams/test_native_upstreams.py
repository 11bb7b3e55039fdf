"""Upstreams that speak a caller's dialect are asked in it, by SDKs that nobody changed."""

import json
from typing import Any, Final

import anthropic
import httpx
import openai
import pytest

from qguide.qnet.policies.upstream_dialects import DialectName
from qguide.server.app import create_app
from qguide.server.chat.fake_openai import DEFAULT_REPLIES
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.support.dialect_upstream import DialectUpstream
from tests.support.native_clients import ASKED, DIALECTS, ONE, THREE, claude, gpt
from tests.support.serving import serving_app

BEST: Final = DEFAULT_REPLIES[2]
"""The scripted Q model likes a desk."""
SCHEMA: Final = {"type": "object", "properties": {"place": {"enum": ["desk", "shelf"]}}}


def test_the_sdks_read_what_the_fake_itself_says(address: str) -> None:
    with claude(address) as client:
        message = client.messages.create(model="fake", max_tokens=9, messages=ASKED)
    with gpt(address) as client:
        response = client.responses.create(model="fake", input=ASKED)
    [text] = message.content
    assert text.type == "text"
    assert (text.text, response.output_text) == (DEFAULT_REPLIES[0], DEFAULT_REPLIES[0])
    assert (message.stop_reason, response.status) == ("end_turn", "completed")


def test_a_candidate_of_responses_ends_at_a_stop_that_it_cannot_be_told(url: str, fake: DialectUpstream) -> None:
    with claude(url) as client:
        message = client.messages.create(
            model="responses", max_tokens=9, messages=ASKED, stop_sequences=["nowhere", "\nAction:"], extra_body={**ONE}
        )
    [text] = message.content
    assert text.type == "text"
    assert text.text == DEFAULT_REPLIES[0].partition("\nAction:")[0]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "\nAction:")
    with gpt(url) as client:
        completion = client.chat.completions.create(
            model="responses", messages=ASKED, stop="around", extra_body={**ONE}
        )
    [choice] = completion.choices
    assert choice.message.content == DEFAULT_REPLIES[0].partition("around")[0] != ""
    assert choice.finish_reason == "stop"
    assert not any("stop" in body for body in fake.asked)


@pytest.mark.parametrize("name", DIALECTS)
def test_every_client_is_guided_on_every_upstream(url: str, name: DialectName) -> None:
    with claude(url) as client:
        message = client.messages.create(model=name, max_tokens=9, messages=ASKED, extra_body={**THREE})
    with gpt(url) as client:
        response = client.responses.create(model=name, input=ASKED, extra_body={**THREE})
        chat = client.chat.completions.create(model=name, messages=ASKED, extra_body={**THREE})
    [text] = message.content
    assert text.type == "text"
    assert [text.text, response.output_text, chat.choices[0].message.content] == [BEST] * 3
    for answer in (message, response, chat):
        assert answer.model_extra is not None
        guidance = answer.model_extra["qguide"]
        assert (guidance["guided"], guidance["distinct_candidates"]) == (True, 3)


@pytest.mark.parametrize("name", DIALECTS)
def test_an_agent_on_messages_calls_a_tool_and_sends_its_result(
    url: str, fake: DialectUpstream, name: DialectName
) -> None:
    tools: Any = [{"name": "look", "input_schema": SCHEMA}]
    with claude(url) as client:
        message = client.messages.create(model=name, max_tokens=9, messages=ASKED, tools=tools, extra_body={**THREE})
        call = message.content[-1]
        assert call.type == "tool_use"
        assert call.input["place"] in ("desk", "shelf")
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "a mug"}
        turns: Any = [*ASKED, message.to_param(), {"role": "user", "content": [result]}]
        with client.messages.stream(model=name, max_tokens=9, messages=turns, tools=tools) as stream:
            done = stream.get_final_message()
    [said] = done.content
    assert said.type == "text"
    assert said.text in DEFAULT_REPLIES
    assert call.id in str(fake.asked[-1])


@pytest.mark.parametrize("name", DIALECTS)
def test_an_agent_on_responses_calls_a_tool_and_sends_its_result(
    url: str, fake: DialectUpstream, name: DialectName
) -> None:
    tools: Any = [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}]
    with gpt(url) as client:
        response = client.responses.create(model=name, input=ASKED, tools=tools, extra_body={**THREE})
        call = response.output[-1]
        assert call.type == "function_call"
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "a mug"}
        items: Any = [*ASKED, *response.output, result]
        with client.responses.stream(model=name, input=items, tools=tools) as stream:
            done = stream.get_final_response()
    assert done.output_text in DEFAULT_REPLIES
    assert call.call_id in str(fake.asked[-1])


def test_signed_thoughts_come_back_and_go_on_as_they_are(url: str, fake: DialectUpstream) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    given = {"model": "messages", "max_tokens": 2048, "thinking": thinking}
    with claude(url) as client:
        message = client.messages.create(**given, messages=ASKED, extra_body={**THREE})
        [thought, text] = message.content
        assert (thought.type, text.type) == ("thinking", "text")
        turns: Any = [*ASKED, message.to_param(), {"role": "user", "content": "go on"}]
        with client.messages.stream(**given, messages=turns, extra_body={**ONE}) as stream:
            done = stream.get_final_message()
    [sent] = fake.asked[3:]
    assert sent["messages"][1]["content"][0] == {"type": "thinking", "thinking": "Let me see.", "signature": "fake"}
    assert [block.type for block in done.content] == ["thinking", "text"]
    assert done.content[0] == thought


def test_betas_reach_an_upstream_of_the_dialect_and_no_other(url: str, fake: DialectUpstream) -> None:
    edits: Any = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    betas = ["context-management-2025-06-27", "context-1m-2025-08-07"]
    given: Any = {"max_tokens": 9, "messages": ASKED, "extra_body": {**THREE}}
    fake.betas.clear()
    with claude(url) as client:
        message = client.beta.messages.create(model="messages", betas=betas, context_management=edits, **given)
        assert set(fake.betas) == {",".join(betas)}
        assert fake.asked[-1]["context_management"] == edits
        assert not {"betas", "anthropic-beta"} & fake.asked[-1].keys()
        fake.betas.clear()
        client.beta.messages.create(model="chat", betas=["oauth-2025-04-20", *betas], **given)
        assert set(fake.betas) == {None}
        client.beta.messages.create(model="messages", betas=["oauth-2025-04-20"], **given)
        assert set(fake.betas) == {None}
    assert message.usage.cache_creation_input_tokens == 3, "one of each of three candidates"


def test_what_an_upstream_wrote_to_its_cache_is_told_in_every_dialect(url: str) -> None:
    with gpt(url) as client:
        chat = client.chat.completions.create(model="messages", messages=ASKED, extra_body={**THREE})
    assert chat.usage
    assert chat.usage.prompt_tokens_details
    details = chat.usage.prompt_tokens_details.model_dump()
    assert details["cache_write_tokens"] == 3, "one of each of three candidates"
    with claude(url) as anthropic:
        message = anthropic.messages.create(model="messages", max_tokens=9, messages=ASKED, extra_body={**THREE})
    usage = message.usage
    counted = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert counted + (usage.cache_creation_input_tokens or 0) == chat.usage.prompt_tokens


def test_an_upstream_that_counts_tokens_is_asked(url: str, fake: DialectUpstream) -> None:
    tools: Any = [{"name": "look", "input_schema": SCHEMA}]
    with claude(url) as client:
        counted = client.beta.messages.count_tokens(
            model="messages", messages=ASKED, tools=tools, betas=["context-1m-2025-08-07"]
        )
    assert fake.asked == [{"model": "fake", "messages": ASKED, "tools": tools}]
    assert str(fake.betas[-1]).startswith("context-1m-2025-08-07")
    assert counted.input_tokens == len(json.dumps(fake.asked[0]))
    assert counted.model_extra is not None
    told = {"counted_by": "upstream", "name": "messages", "exact": True}
    assert counted.model_extra["qguide"] == told
    with gpt(url) as openai_client:
        responses = openai_client.responses.input_tokens.count(model="responses", input=ASKED)
    assert fake.asked[1:] == [{"model": "fake", "input": ASKED}]
    assert responses.input_tokens == len(json.dumps(fake.asked[1]))


def test_without_such_a_route_the_q_model_counts_which_needs_a_tokenizer() -> None:
    with serving_app(DialectUpstream(counts=False).app()) as address:
        demo = Upstream.model_validate({"url": f"{address}/v1", "model": "fake", "retries": 0, "dialect": "messages"})
        settings = Settings(policy="demo", upstreams={"demo": demo}, q_models={"q": SCRIPTED})
        with (
            serving_app(create_app(settings)) as url,
            claude(url) as client,
            pytest.raises(anthropic.BadRequestError, match=r"qguide\.q_model"),
        ):
            client.messages.count_tokens(model="demo", messages=ASKED)


def test_where_the_upstream_is_gone_the_q_model_counts_or_that_is_told() -> None:
    gone = {"url": "http://127.0.0.1:9/v1", "model": "fake", "retries": 0, "dialect": "messages"}
    upstreams = {"demo": Upstream.model_validate(gone)}
    embedded, scripted = (
        Settings(policy="demo", upstreams=upstreams, q_models={"q": q_model}) for q_model in ("embedded", SCRIPTED)
    )
    with serving_app(create_app(embedded)) as url, claude(url) as client:
        counted = client.messages.count_tokens(model="demo", messages=ASKED)
    assert counted.model_extra is not None
    told = counted.model_extra["qguide"]
    assert (told["counted_by"], told["exact"], told["name"][:2]) == ("q_model", False, "q@")
    with (
        serving_app(create_app(scripted)) as url,
        claude(url) as client,
        pytest.raises(anthropic.InternalServerError, match=r"\(\w+Error\)"),
    ):
        client.messages.count_tokens(model="demo", messages=ASKED)


LONG: Final[Any] = [{"role": "user", "content": "find the mug " * 400}]
EPHEMERAL: Final[Any] = {"type": "ephemeral"}


def marks_of(asked: Any) -> list[list[str]]:
    """Texts of the blocks with a breakpoint of each request."""
    return [
        [
            block["text"]
            for turn in body["messages"]
            for block in turn["content"]
            if not isinstance(block, str) and block.get("cache_control") == EPHEMERAL
        ]
        for body in asked
    ]


def cached(address: str) -> Settings:
    table = {"url": f"{address}/v1", "model": "fake", "dialect": "messages", "caches": True}
    upstream = Upstream.model_validate(table | {"retries": 0})
    return Settings(policy="c", upstreams={"c": upstream}, q_models={"q": SCRIPTED})


def test_a_prompt_is_written_to_the_cache_once_and_read_by_the_other_candidates(
    address: str, fake: DialectUpstream
) -> None:
    fake.most_in_flight, fake.delay_s = 0, 0.3
    given: Any = {"model": "c", "max_tokens": 9, "extra_body": {"qguide": {"num_candidates": 5}}}
    with serving_app(create_app(cached(address))) as address, claude(address) as client:
        message = client.messages.create(messages=LONG, **given)
        assert marks_of(fake.asked) == [[LONG[0]["content"]]] * 5
        assert fake.most_in_flight == 4, "the first has begun its answer before the others"
        fake.asked.clear()
        client.messages.create(messages=LONG, cache_control=EPHEMERAL, **given)
        assert marks_of(fake.asked) == [[]] * 5, "the caller's own breakpoint is at the end"
        fake.asked.clear()
        client.messages.create(messages=ASKED, **given)
        assert marks_of(fake.asked) == [[]] * 5, "too short to be cached"
    fake.delay_s = 0
    assert message.content[0].type == "text"
    assert message.content[0].text == BEST


def test_a_first_candidate_that_fails_keeps_none_waiting(address: str, fake: DialectUpstream) -> None:
    fake.fault = "500"
    with (
        serving_app(create_app(cached(address))) as address,
        claude(address) as client,
        pytest.raises(anthropic.InternalServerError),
    ):
        client.messages.create(model="c", max_tokens=9, messages=LONG)
    fake.fault = ""


def test_encrypted_reasoning_comes_back_and_goes_on_as_it_is(url: str, fake: DialectUpstream) -> None:
    with gpt(url) as client:
        response = client.responses.create(model="responses", input=ASKED, extra_body={**THREE})
        items: Any = [*ASKED, *response.output, {"role": "user", "content": "go on"}]
        with client.responses.stream(model="responses", input=items, extra_body={**ONE}) as stream:
            done = stream.get_final_response()
    [sent] = fake.asked[3:]
    assert sent["input"][1]["type"] == "reasoning"
    assert sent["input"][1]["encrypted_content"] == "fake"
    assert [item.type for item in done.output] == ["reasoning", "message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "messages",
            {
                "max_tokens": 9,
                "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
                "messages": ASKED,
                "service_tier": "auto",
                "context_management": {"edits": []},
            },
        ),
        (
            "responses",
            {
                "instructions": "be brief",
                "input": ASKED,
                "max_output_tokens": 99,
                "include": ["reasoning.encrypted_content"],
                "store": False,
                "truncation": "auto",
                "prompt_cache_key": "k",
            },
        ),
    ],
)
def test_a_request_in_the_upstreams_dialect_goes_on_as_it_came(
    url: str, fake: DialectUpstream, path: str, body: dict[str, Any]
) -> None:
    asked = {"model": path, **body, **ONE}
    answer = httpx.post(f"{url}/v1/{path}", json=asked).raise_for_status().json()
    assert fake.asked == [body | {"model": "fake"}]
    assert (answer["qguide"]["guided"], answer["qguide"]["warnings"]) == (False, [])


def test_errors_of_a_native_upstream_are_the_callers(url: str, fake: DialectUpstream) -> None:
    fake.fault, fake.faults_left = "context", 1
    with claude(url) as client, pytest.raises(anthropic.BadRequestError, match="9 tokens > 8"):
        client.messages.create(model="messages", max_tokens=9, messages=ASKED, extra_body={**ONE})
    fake.fault, fake.faults_left = "429", 1
    with gpt(url) as client, pytest.raises(openai.RateLimitError) as raised:
        client.responses.create(model="responses", input=ASKED, extra_body={**ONE})
    assert raised.value.response.headers["retry-after"] == "1"
    fake.fault = ""
