"""POST /v1/responses on a server in this process."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.qnet.types import DEFAULT_TEMPERATURE
from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream

ITEM: Any = {"role": "user", "content": "find the mug"}


def ask(client: TestClient, **body: Any) -> Any:
    response = client.post("/v1/responses", json={"input": [ITEM]} | body)
    assert response.status_code == 200, response.text
    return response.json()


def refusal(client: TestClient, status: int, **body: Any) -> Any:
    response = client.post("/v1/responses", json={"input": [ITEM]} | body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code", "request_id"}
    return error


def test_options_come_in_the_body_and_in_headers(guided: TestClient) -> None:
    answer = ask(guided, qguide={"num_candidates": 3, "return_candidates": True})
    assert answer["qguide"]["q_values"] == [0.5, 0.25, 0.75]
    assert len(answer["qguide"]["candidates"]) == 3
    headers = {"X-QGuide-Num-Candidates": "2"}
    answer = guided.post("/v1/responses", json={"input": "x"}, headers=headers).json()
    assert answer["qguide"]["num_candidates"] == 2


def test_the_temperature_is_the_one_that_candidates_are_drawn_at(client: TestClient, guided: TestClient) -> None:
    assert ask(guided)["temperature"] == 1
    assert ask(client)["temperature"] == DEFAULT_TEMPERATURE
    assert ask(guided, temperature=0)["temperature"] == 0
    assert ask(guided, temperature=0, qguide={"temperature": 1.5})["temperature"] == 1.5


def test_a_number_that_json_has_not_is_refused(guided: TestClient) -> None:
    body = '{"input": "x", "presence_penalty": Infinity}'
    headers = {"content-type": "application/json"}
    response = guided.post("/v1/responses", content=body, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "presence_penalty"


def test_the_steps_of_an_episode_are_recorded(guided: TestClient) -> None:
    options = {"episode_id": "e"}
    first = ask(guided, qguide=options)
    items = [ITEM, *first["output"], {"role": "user", "content": "You see a desk."}]
    ask(guided, input=items, qguide=options)
    outcome = guided.post("/v1/episodes/e/outcome", json={"reward": 1.0}).json()
    assert outcome["steps"] == 2


def test_a_policy_in_this_process_answers_too(client: TestClient) -> None:
    answer = ask(client, max_output_tokens=20)
    assert answer["output"][0]["content"][0]["text"]
    assert answer["max_output_tokens"] == 20
    error = refusal(client, 400, tools=[{"type": "function", "name": "go"}])
    assert (error["code"], error["param"]) == ("unsupported_parameter", "tools")


def test_what_no_q_model_reads_is_refused_or_goes_on_unguided(guided: TestClient, upstream: FakeUpstream) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    items = [{"role": "user", "content": [image]}]
    strict = {"fallback": "error"}
    assert "image_url" in refusal(guided, 400, input=items, qguide=strict)["message"]
    answer = ask(guided, input=items)
    assert answer["qguide"]["guided"] is False
    assert upstream.asked[0]["messages"][0]["content"][0]["type"] == "image_url"


@pytest.mark.parametrize(
    ("body", "code", "param", "said"),
    [
        ({"input": 3}, "malformed_body", "input", "valid"),
        ({"input": []}, "malformed_history", None, "messages is empty"),
        ({"temperature": 9}, "malformed_body", "temperature", "less than or equal"),
        ({"background": True, "store": False}, "invalid_request", None, "a stored response"),
        ({"qguide": {"m": 3}}, "malformed_body", "qguide.m", "not permitted"),
    ],
)
def test_a_wrong_request_is_explained_in_openais_shape(
    guided: TestClient, body: Any, code: str, param: str | None, said: str
) -> None:
    error = refusal(guided, 400, **body)
    assert (error["code"], error["type"]) == (code, "invalid_request_error")
    assert (error["param"] or "").startswith(param or "")
    assert said in error["message"]


def test_a_stream_that_fails_at_once_has_a_status(guided: TestClient, upstream: FakeUpstream) -> None:
    upstream.fault = "500"
    assert refusal(guided, 502, stream=True)["code"] == "upstream_failed"


def test_a_stream_ends_with_the_response(guided: TestClient) -> None:
    response = guided.post("/v1/responses", json={"input": "x", "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, rest = response.text.split("\n\n")
    assert rest == ""
    assert events[0].startswith("event: response.created\ndata: {")
    name, data = events[-1].split("\n")
    assert name == "event: response.completed"
    last = json.loads(data.removeprefix("data: "))
    assert last["response"]["output"][0]["content"][0]["text"] == DEFAULT_REPLIES[2]


def test_a_whole_number_may_have_a_point(guided: TestClient) -> None:
    assert ask(guided, top_logprobs=2.0, max_output_tokens=20.0)["top_logprobs"] == 2


def test_errors_call_parameters_as_the_request_does(client: TestClient) -> None:
    error = refusal(client, 400, text={"format": {"type": "json_object"}})
    assert error["param"] == "text.format"
    assert "'text.format'" in error["message"]
