"""POST /v1/chat/completions."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from qguide.server.q_models.build import build_models
from qguide.server.q_models.registry import Models
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.support.chats import TOOL, USER, ask, events_of
from tests.unit.server.conftest import Serve, models_of, settings_of


def test_the_best_of_m_is_an_ordinary_completion(guided: TestClient, upstream: FakeUpstream) -> None:
    answer = ask(guided, model="demo", qguide={"num_candidates": 3})
    assert (answer["object"], answer["model"]) == ("chat.completion", "demo")
    assert answer["id"].startswith("chatcmpl-")
    [choice] = answer["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": DEFAULT_REPLIES[2], "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert [body["n"] for body in upstream.asked] == [3]
    guidance = answer["qguide"]
    assert guidance["q_values"] == [0.5, 0.25, 0.75]
    assert (guidance["chosen"], guidance["guided"]) == (2, True)
    assert (guidance["reason"], guidance["q_model"]) == ("highest_q", "demo")
    assert "candidates" not in guidance


def test_usage_is_what_all_candidates_cost(guided: TestClient) -> None:
    answer = ask(guided, messages=[USER, {"role": "user", "content": "now"}])
    words = sum(len(DEFAULT_REPLIES[k % 3].split()) for k in range(5))
    assert answer["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": words,
        "total_tokens": 4 + words,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    usage = answer["qguide"]["usage"]
    assert usage["sample"] == {"prompt_tokens": 4, "cached_tokens": 3, "completion_tokens": words}
    distinct = sum(len(reply.split()) for reply in DEFAULT_REPLIES)
    assert usage["score"] == {"scored_tokens": 4 + distinct, "cached_tokens": 0}
    timings = answer["qguide"]["timings_ms"]
    assert timings["total"] >= timings["sample"] + timings["score"] > 0


def test_n_returns_the_n_best_in_order_of_q(guided: TestClient) -> None:
    answer = ask(guided, n=3, qguide={"num_candidates": 5})
    contents = [choice["message"]["content"] for choice in answer["choices"]]
    assert contents == [DEFAULT_REPLIES[2], DEFAULT_REPLIES[0], DEFAULT_REPLIES[1]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["qguide"]["returned"] == [2, 0, 1]


def test_n_above_the_default_draws_as_many(guided: TestClient) -> None:
    assert len(ask(guided, n=7)["choices"]) == 7


def test_tool_calls_are_candidates_and_the_best_is_returned_with_its_id(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    def build(settings: Settings) -> Models:
        models = build_models(settings)
        scripted = models_of(ScriptedPolicy(), ScriptedScorer({'"shelf"': 0.9}), DeviceThread())
        models.runtime.thread.close()
        models.runtime.shadow_thread.close()
        return Models(scripted.runtime, models.policy, scripted.q_models, upstreams=models.upstreams)

    client = serve(settings_of(address[1]), build)
    answer = ask(client, tools=[TOOL], tool_choice="required", qguide={"return_candidates": True})
    [choice] = answer["choices"]
    [call] = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert call["function"] == {"name": "go", "arguments": '{"to": "shelf"}'}
    assert call["id"].startswith("call_")
    assert answer["qguide"]["distinct_candidates"] == 2
    assert answer["qguide"]["q_values"] == [0.0, 0.9, 0.0, 0.9, 0.0]
    assert len(answer["qguide"]["candidates"]) == 5
    assert upstream.asked[0]["tool_choice"] == "required"

    # The result goes back as agents send it, with what else the answer's message had.
    result = {"role": "tool", "content": "a mug", "tool_call_id": call["id"]}
    ask(client, messages=[USER, choice["message"], result], tools=[TOOL])
    assert upstream.asked[1]["messages"][1:] == [{k: v for k, v in choice["message"].items() if k != "refusal"}, result]


def test_unknown_parameters_and_fields_of_turns_reach_the_upstream(guided: TestClient, upstream: FakeUpstream) -> None:
    turn = USER | {"name": "anna"}
    more = {"top_k": 7, "stop": ["\n"], "user": "u", "max_completion_tokens": 5, "seed": 3}
    ask(guided, messages=[turn], **more)
    [asked] = upstream.asked
    assert asked == more | {"model": "fake-1", "messages": [turn], "n": 5}


def test_logprobs_are_passed_on(guided: TestClient) -> None:
    [choice] = ask(guided, logprobs=True)["choices"]
    tokens = [row["token"] for row in choice["logprobs"]["content"]]
    assert tokens == choice["message"]["content"].split()


@pytest.mark.parametrize("streamed", [False, True])
def test_what_else_the_upstream_says_is_passed_on(guided: TestClient, streamed: bool) -> None:
    asked: dict[str, Any] = {
        "seed": 0,
        "return_token_ids": True,
        "reasoning_effort": "low",
        "qguide": {"num_candidates": 3},
    }
    if streamed:
        usage = {"stream_options": {"include_usage": True}}
        events = events_of(guided, **asked, **usage)
        assert {one["system_fingerprint"] for one in events} == {"fp_fake"}
        answer, choice = events[-1], events[-2]["choices"][0]
    else:
        answer = ask(guided, **asked)
        assert answer["system_fingerprint"] == "fp_fake"
        choice = answer["choices"][0]
    assert choice["token_ids"] == list(range(len(DEFAULT_REPLIES[2].split())))
    assert "stop_reason" not in choice
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}


def test_a_header_goes_before_the_body_and_the_body_before_the_default(
    guided: TestClient, upstream: FakeUpstream
) -> None:
    body = {
        "messages": [USER],
        "temperature": 0.1,
        "qguide": {"num_candidates": 2, "temperature": 0.9, "q_model": "other"},
    }
    headers = {"X-QGuide-Num-Candidates": "4", "X-QGuide-Return-Candidates": "true"}
    answer = guided.post("/v1/chat/completions", json=body, headers=headers).json()
    assert len(answer["qguide"]["candidates"]) == answer["qguide"]["num_candidates"] == 4
    assert answer["qguide"]["q_model"] == "other"
    assert upstream.asked[0]["temperature"] == 0.9


@pytest.mark.parametrize("num_candidates", [1, 3])
def test_identical_candidates_skip_the_scorer(guided: TestClient, upstream: FakeUpstream, num_candidates: int) -> None:
    upstream.replies = ["Action: look"]
    answer = ask(guided, qguide={"num_candidates": num_candidates})
    guidance = answer["qguide"]
    assert guidance["q_values"] is None
    assert guidance["reason"] == ("only_candidate" if num_candidates == 1 else "unanimous")
    assert guidance["guided"] is False
    why = "one candidate was drawn" if num_candidates == 1 else "all 3 candidates are equal"
    assert guidance["unguided_reason"].startswith(why)
    assert guidance["usage"]["score"] == {"scored_tokens": 0, "cached_tokens": 0}
    assert answer["choices"][0]["message"]["content"] == "Action: look"


@pytest.mark.parametrize("by", ["body", "option"])
def test_at_temperature_0_one_candidate_is_greedy_and_the_others_differ(
    guided: TestClient, upstream: FakeUpstream, by: str
) -> None:
    options: Any = {"num_candidates": 3} | ({"temperature": 0} if by == "option" else {})
    body = {"qguide": options} | ({"temperature": 0} if by == "body" else {})
    guidance = ask(guided, **body)["qguide"]
    drawn = sorted((asked.get("n", 1), asked["temperature"]) for asked in upstream.asked)
    assert drawn == [(1, 0.0), (2, 0.7)]
    [warning] = guidance["warnings"]
    assert "at 0.7 (QGUIDE_GUIDANCE_TEMPERATURE)" in warning
    assert guidance["guided"] is True


def test_the_operator_may_leave_temperature_0_alone_and_no_copies_are_drawn(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    client = serve(settings_of(address[1], guidance_temperature=0.0))
    answer = ask(client, temperature=0, n=2, qguide={"num_candidates": 5})
    assert [asked["n"] for asked in upstream.asked] == [2]
    assert len(answer["choices"]) == 2
    [warning] = answer["qguide"]["warnings"]
    assert warning.startswith("temperature is 0")
    one = ask(client, temperature=0, qguide={"num_candidates": 5})["qguide"]
    assert (one["guided"], one["num_candidates"]) == (False, 1)
    assert one["unguided_reason"].startswith("one candidate was drawn")


def test_paraphrases_make_a_choice_at_temperature_0(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    client = serve(settings_of(address[1], paraphraser="scripted"))
    guidance = ask(client, temperature=0, qguide={"num_candidates": 3, "perturb": True})["qguide"]
    assert {asked["temperature"] for asked in upstream.asked} == {0.0}
    assert guidance["warnings"] == []


def test_any_served_policy_can_be_named(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    client = serve(settings_of(address[1], policy=SCRIPTED))
    assert ask(client)["model"] == SCRIPTED
    assert ask(client, model="default")["model"] == SCRIPTED
    assert ask(client, model="demo")["model"] == "demo"
    assert ask(client, model="fake-1")["model"] == "demo"
    acted = client.post("/v1/act", json={"messages": [USER], "policy": "demo"}).json()
    assert acted["policy"] == "demo"
    assert acted["usage"]["prompt_tokens"] > 0


def test_parts_of_text_are_one_text_to_who_reads_them_here(client: TestClient) -> None:
    parts = [{"type": "text", "text": "find"}, {"type": "text", "text": "the mug"}]
    apart, one = (ask(client, messages=[{"role": "user", "content": c}]) for c in (parts, "a b c"))
    assert apart["usage"] == one["usage"]


def test_a_policy_in_this_process_takes_what_changes_nothing(tiny_client: TestClient) -> None:
    answer = ask(
        tiny_client,
        model="tiny-policy",
        max_completion_tokens=4,
        seed=-3,
        top_p=1,
        tools=[],
        user="me",
        store=False,
        response_format={"type": "text"},
        qguide={"num_candidates": 3, "temperature": 1.5},
    )
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")
    assert answer["qguide"]["q_values"] is not None
    assert answer["usage"]["completion_tokens"] <= 12


def test_models_are_listed_as_openai_lists_them(guided: TestClient) -> None:
    cards = guided.get("/v1/models").json()
    assert cards["object"] == "list"
    for card in cards["data"]:
        assert card["object"] == "model"
        assert isinstance(card["created"], int)
    [policy] = cards["data"]
    assert (policy["id"], policy["owned_by"], policy["source"]) == ("demo", "demo", "upstream")
    assert policy["default"] is True
    assert {card["owned_by"] for card in cards["q_models"]} == {"qguide"}


def test_half_a_character_of_an_upstream_is_one_that_was_lost(guided: TestClient, upstream: FakeUpstream) -> None:
    upstream.fault = "half"
    options = {"num_candidates": 2, "return_candidates": True}
    answer = ask(guided, model="demo", qguide=options)
    said = [c["message"]["content"] for c in answer["qguide"]["candidates"]]
    assert "half \ufffd" in said
    assert events_of(guided, model="demo", qguide=options)
