"""POST /v1/completions: the prompt is a chat's user message, the best reply its text."""

import json
import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from qguide.server.chat.text_completions import CompletionRequest, to_chat_requests
from tests.support.dialect_upstream import DialectUpstream

PATH = "/v1/completions"


def ask(client: TestClient, **body: Any) -> Any:
    response = client.post(PATH, json={"prompt": "find the mug"} | body)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_text_is_the_best_candidates(guided: TestClient, upstream: FakeUpstream) -> None:
    answer = ask(guided, max_tokens=20, stop=["x"], top_k=3, best_of=3)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    [choice] = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (DEFAULT_REPLIES[2], "stop")
    assert answer["qguide"]["q_values"] == [0.5, 0.25, 0.75]
    assert answer["usage"]["completion_tokens"] > 0
    [asked] = upstream.asked
    assert asked["messages"] == [{"role": "user", "content": "find the mug"}]
    assert (asked["max_tokens"], asked["stop"], asked["top_k"], asked["n"]) == (20, ["x"], 3, 3)


def test_options_say_m_before_best_of(guided: TestClient) -> None:
    answer = ask(guided, best_of=3, n=2, qguide={"num_candidates": 4})
    assert answer["qguide"]["num_candidates"] == 4
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert ask(guided, prompt=["find the mug"])["choices"][0]["text"] == DEFAULT_REPLIES[2]


def test_a_stream_brings_the_texts_in_parts(guided: TestClient) -> None:
    body = {"prompt": "x", "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    *events, end, rest = guided.post(PATH, json=body).text.split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    parts = [json.loads(event.removeprefix("data: ")) for event in events]
    text = {0: "", 1: ""}
    for part in parts:
        for choice in part["choices"]:
            text[choice["index"]] += choice["text"]
    assert text == {0: DEFAULT_REPLIES[2], 1: DEFAULT_REPLIES[0]}
    assert sum("qguide" in part for part in parts) == 1
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize(
    ("body", "code", "param", "said"),
    [
        ({"prompt": ["a"] * 65}, "invalid_request", None, "are 65 prompts; send at most 64"),
        ({"prompt": [[1, 2]] * 65}, "invalid_request", None, "65 prompts; send at most 64"),
        ({"prompt": [1, 2], "best_of": 99}, "invalid_candidates", None, "ask for 1 to 8"),
        ({"echo": True, "n": 9}, "invalid_candidates", None, "ask for 1 to 8"),
        ({"prompt": []}, "invalid_request", None, "prompt is empty"),
        ({"prompt": [1, "a"]}, "malformed_body", "prompt", "valid string"),
        ({"echo": True, "stream": True}, "unsupported_parameter", "echo", "do not stream"),
        ({"suffix": ".", "qguide_x": 1}, "unsupported_parameter", "qguide_x", "not among"),
        ({"max_completion_tokens": "x"}, "invalid_request", None, "max_completion_tokens: Input"),
        ({"best_of": 99}, "invalid_candidates", None, "ask for 1 to 8"),
    ],
)
def test_what_a_chat_cannot_answer_is_refused_with_its_remedy(
    guided: TestClient, body: Any, code: str, param: str | None, said: str
) -> None:
    response = guided.post(PATH, json={"prompt": "x"} | body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["code"] == code
    assert (error["param"] or "").startswith(param or "")
    assert said in error["message"]


def test_a_message_in_place_of_a_prompt_changes_nothing(guided: TestClient, upstream: FakeUpstream) -> None:
    ask(guided, messages="x")
    assert upstream.asked[0]["messages"] == [{"role": "user", "content": "find the mug"}]


def test_each_of_several_prompts_is_answered_with_its_best(guided: TestClient) -> None:
    answer = ask(guided, prompt=["find the mug", "find the key"], n=2, best_of=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["choices"][2]["text"] == DEFAULT_REPLIES[2]
    told = [choice["qguide"]["q_values"] for choice in answer["choices"] if "qguide" in choice]
    assert told == [[0.5, 0.25, 0.75]] * 2
    alone = ask(guided, n=2, best_of=3)["usage"]
    assert answer["usage"]["total_tokens"] == 2 * alone["total_tokens"]
    streamed = guided.post(PATH, json={"prompt": ["x", "y"], "stream": True}).text
    assert streamed.count('"qguide"') == 2


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [1, 2, 3], "max_tokens": 2},
        {"prompt": [[1, 2], [3]]},
        {"prompt": "find", "echo": True, "logprobs": 1, "max_tokens": 0, "temperature": 0.0},
        {"prompt": "find", "logprobs": 0},
        {"prompt": "find", "suffix": "."},
    ],
)
def test_tokens_and_logprobs_are_the_upstreams_own_unguided(
    guided: TestClient, upstream: FakeUpstream, body: Any
) -> None:
    answer = ask(guided, **body, metadata={"a": "b"})
    assert upstream.asked == [body | {"model": "fake-1"}]
    assert "qguide" not in answer
    assert answer["model"] == "demo"
    assert (answer["choices"][0]["logprobs"] is not None) == ("logprobs" in body)
    assert "qguide_completion_tokens_total 3.0" in guided.get("/metrics").text


def test_tokens_for_a_policy_without_completions_are_refused(client: TestClient) -> None:
    error = client.post(PATH, json={"prompt": [1, 2]}).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "prompt")
    assert "'scripted' answers chats" in error["message"]


def test_the_parameters_of_several_prompts_are_validated_once() -> None:
    bias = {str(token): 1.0 for token in range(20_000)}

    def seconds(num_prompts: int) -> float:
        body = CompletionRequest.model_validate({"prompt": ["x"] * num_prompts, "logit_bias": bias})
        begun = time.perf_counter()
        assert len(to_chat_requests(body)) == num_prompts
        return time.perf_counter() - begun

    assert min(seconds(64) for _ in range(3)) < 8 * min(seconds(1) for _ in range(3))


def test_several_prompts_are_no_steps_of_an_episode(guided: TestClient) -> None:
    body: Any = {"prompt": ["x", "y"], "prompt_cache_key": "s"}
    body["tools"] = [{"type": "function", "function": {"name": "look"}}]
    assert "episode_id" in ask(guided, **body | {"prompt": "x"})["qguide"]
    assert not any("episode_id" in choice["qguide"] for choice in ask(guided, **body)["choices"])


@pytest.mark.parametrize("body", [{"prompt": ["x", "y"]}, {"prompt": "x", "echo": True}])
def test_an_outcome_is_refused_where_there_is_no_step(
    guided: TestClient, upstream: FakeUpstream, body: dict[str, Any]
) -> None:
    headers = {"X-Session-ID": "s", "X-QGuide-Outcome": "1"}
    answer = guided.post(PATH, json=body, headers=headers)
    assert answer.status_code == 400
    assert "post the outcome to /v1/episodes/ID/outcome" in answer.json()["error"]["message"]
    assert upstream.asked == []


@pytest.mark.parametrize("usage", [[], "x", {"prompt_tokens": -5}, None])
def test_an_odd_usage_of_the_upstream_counts_for_nothing(
    guided: TestClient, upstream: DialectUpstream, usage: Any
) -> None:
    upstream.odd = {"usage": usage}
    assert ask(guided, echo=True)["usage"] == usage


def test_the_upstreams_own_completions_end_with_the_requests_time(guided: TestClient, upstream: FakeUpstream) -> None:
    upstream.delay_s = 20.0
    answer = guided.post(PATH, json={"prompt": "x", "echo": True}, headers={"X-QGuide-Timeout-S": "0.2"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "deadline_exceeded")
