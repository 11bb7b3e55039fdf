"""The policy behind an OpenAI-compatible server, against the fake that ships."""

from typing import Any

import pytest

from qguide.qnet.chat_messages import plain_message
from qguide.qnet.errors import InvalidCandidatesError, InvalidRequestError, UpstreamError
from qguide.qnet.policies.answers import cut_at
from qguide.qnet.policies.upstream_settings import UpstreamLimits
from qguide.qnet.types import Message, Sampling, ToolCall
from qguide.qnet.work import TokenUsage, collect_usage
from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from tests.support.upstream_policy import HISTORY, TOOL, Body, answering, said


async def test_candidates_come_from_one_request(connect: Any, upstream: FakeUpstream) -> None:
    async with connect() as policy:
        drawn = await policy.sample(HISTORY, n=3, sampling=Sampling(seed=0, max_tokens=9))
    assert said(drawn) == list(DEFAULT_REPLIES)
    [asked] = upstream.asked
    assert asked == {
        "model": "fake",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "find the mug"}],
        "n": 3,
        "temperature": 0.7,
        "max_tokens": 9,
        "seed": 0,
    }
    assert upstream.keys == ["Bearer secret"]


async def test_usage_is_the_upstreams(connect: Any, upstream: FakeUpstream) -> None:
    async with connect() as policy:
        drawn = await policy.sample(HISTORY, n=3, sampling=Sampling())
    words = sum(len(reply.split()) for reply in DEFAULT_REPLIES)
    spent = drawn[0].spent
    assert spent is not None
    assert (spent.prompt_tokens, spent.completion_tokens, spent.cached_tokens) == (5, words, 2)
    assert [candidate.spent for candidate in drawn[1:]] == [None, None]
    assert sum(candidate.completion_tokens for candidate in drawn) == words


async def test_other_parameters_are_passed_on_and_unset_ones_left_out(connect: Any, upstream: FakeUpstream) -> None:
    parameters = {"top_k": 3, "tools": [TOOL], "note": "\ud800"}
    sampling = Sampling(temperature=None, max_tokens=None, parameters=parameters)
    async with connect() as policy:
        [drawn] = await policy.sample(HISTORY, n=1, sampling=sampling)
    [asked] = upstream.asked
    assert {k: v for k, v in asked.items() if k not in ("model", "messages")} == parameters
    assert drawn.message.tool_calls == (ToolCall("go", '{"to": "desk"}'),)
    assert drawn.message.content == ""
    assert drawn.finish_reason == "tool_calls"


async def test_tool_turns_are_sent_as_they_came(connect: Any, upstream: FakeUpstream) -> None:
    call = Message("assistant", "", (ToolCall("go", '{"to":"desk"}', "call_9"),))
    wire = {"role": "tool", "content": "a mug", "tool_call_id": "call_9", "name": "go"}
    result = Message("tool", "a mug", (), "call_9", wire)
    async with connect() as policy:
        await policy.sample((*HISTORY, call, result), n=1, sampling=Sampling())
    function = {"name": "go", "arguments": '{"to":"desk"}'}
    assert upstream.asked[0]["messages"][2:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_9", "type": "function", "function": function}],
        },
        wire,
    ]


async def test_the_greedy_candidate_is_a_request_of_its_own(connect: Any, upstream: FakeUpstream) -> None:
    async with connect() as policy:
        drawn = await policy.sample(HISTORY, n=3, sampling=Sampling(first_greedy=True))
        assert len(drawn) == 3
        asked = {(body["temperature"], body.get("n", 1)) for body in upstream.asked}
        assert asked == {(0.0, 1), (0.7, 2)}
        await policy.sample(HISTORY, n=1, sampling=Sampling(first_greedy=True))
    assert upstream.asked[-1]["temperature"] == 0.0


async def test_parallel_requests_count_the_seed_up(connect: Any, upstream: FakeUpstream) -> None:
    async with connect(takes_n=False) as policy:
        drawn = await policy.sample(HISTORY, n=3, sampling=Sampling(seed=0))
    assert said(drawn) == list(DEFAULT_REPLIES)
    assert sorted(body["seed"] for body in upstream.asked) == [0, 1, 2]
    assert not any("n" in body for body in upstream.asked)
    assert all(candidate.spent for candidate in drawn)


@pytest.mark.parametrize(("seed", "sent"), [(2**63 - 2, [-(2**63), 2**63 - 2, 2**63 - 1]), (-1, [-1, 0, 1])])
async def test_a_seed_is_counted_up_within_what_upstreams_take(
    connect: Any, upstream: FakeUpstream, seed: int, sent: list[int]
) -> None:
    async with connect(takes_n=False) as policy:
        await policy.sample(HISTORY, n=3, sampling=Sampling(seed=seed))
    assert sorted(body["seed"] for body in upstream.asked) == sent


async def test_custom_tools_are_called(connect: Any, upstream: FakeUpstream) -> None:
    tool = {"type": "custom", "custom": {"name": "shell"}}
    sampling = Sampling(parameters={"tools": [tool]})
    async with connect(limits=UpstreamLimits(breaker_failures=1)) as policy:
        [drawn] = await policy.sample(HISTORY, n=1, sampling=sampling)
        [call] = drawn.message.tool_calls
        assert (call.name, call.arguments, call.kind) == ("shell", "input 0", "custom")
        result = Message("tool", "done", (), call.id)
        await policy.sample((*HISTORY, drawn.message, result), n=1, sampling=sampling)
    assert upstream.asked[1]["messages"][2]["tool_calls"] == [
        {"id": call.id, "type": "custom", "custom": {"name": "shell", "input": "input 0"}}
    ]


async def test_fewer_than_one_candidate_is_refused(connect: Any) -> None:
    async with connect() as policy:
        with pytest.raises(InvalidCandidatesError, match=r"^n .*0;"):
            await policy.sample(HISTORY, n=0, sampling=Sampling())


async def test_numbers_that_json_lacks_are_refused_before_they_are_sent(connect: Any, upstream: FakeUpstream) -> None:
    async with connect() as policy:
        with pytest.raises(InvalidRequestError, match="NaN or Infinity"):
            await policy.sample(HISTORY, n=1, sampling=Sampling(parameters={"x": float("nan")}))
    assert not upstream.asked


async def test_an_answer_without_choices_is_paid_for() -> None:
    empty = b'{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}'
    policy = answering(Body([empty]))
    with collect_usage() as paid, pytest.raises(UpstreamError, match=r"demo .*completion"):
        await policy.sample(HISTORY, n=1, sampling=Sampling())
    await policy.close()
    assert paid == [TokenUsage(7, 3)]


async def test_a_refusal_is_a_candidate_of_its_words_and_goes_on_as_it_came() -> None:
    refused = b'{"choices": [{"message": {"role": "assistant", "content": null, "refusal": "I cannot help."}}]}'
    policy = answering(Body([refused]))
    [drawn] = await policy.sample(HISTORY, n=1, sampling=Sampling())
    await policy.close()
    assert drawn.message == Message("assistant", "I cannot help.")
    assert drawn.message.wire == {"role": "assistant", "content": None, "refusal": "I cannot help."}
    ended = cut_at(drawn, ["help"])
    assert ended.message.wire == {"role": "assistant", "content": ended.message.content} == plain_message(ended.message)
    assert ended.message.content == "I cannot "
