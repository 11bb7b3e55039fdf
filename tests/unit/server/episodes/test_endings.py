"""Episodes that end by a header of a step, or by the operator's rules."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.settings.outcome_rules import OutcomeRule
from tests.unit.server.conftest import FAKES, Serve, settings_of
from tests.unit.server.http.test_sessions import DIALECTS, TASK

RULES = (
    OutcomeRule(where="last_tool_result", contains="Thanks", outcome=1.0),
    OutcomeRule(where="last_tool_result", lacks="Thanks", outcome=0.25, final=True),
)
PARAMETERS = {"type": "object", "properties": {"room": {"type": "string"}}}
FUNCTION = {"name": "bring", "description": "Bring it.", "parameters": PARAMETERS}


def closing(client: TestClient, episode: str, reward: float) -> tuple[int, str]:
    """Status and code of posting this outcome: 409 where the episode has ended with another."""
    answer = client.post(f"/v1/episodes/{episode}/outcome", json={"reward": reward})
    return answer.status_code, answer.json().get("error", {}).get("code", "")


def ended_with(client: TestClient, episode: str, reward: float) -> bool:
    """True if the episode has ended with this reward."""
    same, other = closing(client, episode, reward), closing(client, episode, reward - 0.125)
    return same == (200, "") and other == (409, "episode_closed")


def is_open(client: TestClient, episode: str) -> bool:
    """True if the episode takes one more step."""
    answer = client.post(f"/episodes/{episode}/v1/act", json={"messages": [TASK]})
    return answer.status_code == 200


@pytest.mark.parametrize("path", DIALECTS)
def test_every_dialect_ends_its_episode_by_the_header(client: TestClient, path: str) -> None:
    headers = {"X-Session-ID": "e", "X-QGuide-Outcome": "0.75"}
    answer = client.post(path, json=DIALECTS[path], headers=headers)
    assert answer.status_code == 200, answer.text
    assert not is_open(client, "e")
    assert ended_with(client, "e", 0.75)


@pytest.mark.parametrize(
    ("said", "reward"), [("true", 1.0), ("False", 0.0), ("1", 1.0), ("0", 0.0), (".5", 0.5), ("1e-1", 0.1)]
)
def test_the_header_is_a_number_or_a_truth_value(client: TestClient, said: str, reward: float) -> None:
    headers = {"X-QGuide-Outcome": said}
    body = {"messages": [TASK], "episode_id": "e"}
    assert client.post("/v1/act", json=body, headers=headers).status_code == 200
    assert ended_with(client, "e", reward)


@pytest.mark.parametrize("said", ["", "yes", "1.1", "-0.1", "nan", "inf", "1, 0", "0x1", "9" * 500])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/act"])
def test_another_value_is_refused_before_anything_is_drawn(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream, path: str, said: str
) -> None:
    client = serve(settings_of(address[1]))
    headers = {"X-Session-ID": "e", "X-QGuide-Outcome": said}
    answer = client.post(path, json=DIALECTS[path], headers=headers)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "X-QGuide-Outcome" in message
    assert "from 0 to 1, true or false" in message
    assert len(message) < 250
    assert ("type" in answer.json()["error"]) == (path != "/v1/act"), "the dialect's own format"
    assert upstream.asked == []


@pytest.mark.parametrize("path", DIALECTS)
def test_an_outcome_of_no_episode_is_refused(client: TestClient, path: str) -> None:
    answer = client.post(path, json=DIALECTS[path], headers={"X-QGuide-Outcome": "1"})
    assert answer.status_code == 400
    assert "names no episode; name it by X-Session-ID" in answer.text


def test_scores_that_are_no_step_refuse_an_outcome(client: TestClient) -> None:
    item = {"messages": [TASK], "candidates": ["Action: look"]}
    headers = {"X-Session-ID": "e", "X-QGuide-Outcome": "1"}
    answer = client.post("/v1/score/batch", json={"items": [item]}, headers=headers)
    assert answer.status_code == 400
    assert "post the outcome to /v1/episodes/ID/outcome" in answer.json()["error"]["message"]


def test_an_outcome_above_the_operators_bounds_is_refused(serve: Serve) -> None:
    client = serve(FAKES.model_copy(update={"max_reward": 0.5}))
    headers = {"X-Session-ID": "e", "X-QGuide-Outcome": "1"}
    answer = client.post("/v1/act", json={"messages": [TASK]}, headers=headers)
    assert answer.status_code == 400
    assert "QGUIDE_MAX_REWARD" in answer.json()["error"]["message"]


def test_the_last_step_may_be_sent_again_but_with_no_other_outcome(client: TestClient) -> None:
    def step(**headers: str) -> int:
        sent = {"X-Session-ID": "e"} | {f"X-QGuide-{name}": v for name, v in headers.items()}
        return client.post("/v1/act", json={"messages": [TASK]}, headers=sent).status_code

    assert [step(), step(Outcome="1"), step(Outcome="1.0")] == [200, 200, 200]
    assert [step(Outcome="0"), step()] == [409, 409]


def test_a_step_that_failed_leaves_its_episode_open(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    client = serve(settings_of(address[1]))
    upstream.fault, upstream.faults_left = "500", 1
    headers = {"X-Session-ID": "e", "X-QGuide-Outcome": "1"}
    body = DIALECTS["/v1/chat/completions"] | {"qguide": {"num_candidates": 1}}
    assert client.post("/v1/chat/completions", json=body, headers=headers).status_code >= 500
    assert client.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
    assert ended_with(client, "e", 1.0)


def chat(answer: str | None) -> dict[str, Any]:
    tools = [{"type": "function", "function": FUNCTION}]
    call = {"id": "c1", "type": "function", "function": {"name": "bring", "arguments": "{}"}}
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": answer},
    ]
    return {"messages": [TASK, *(turns if answer else [])], "tools": tools}


def message(answer: str | None) -> dict[str, Any]:
    tools = [{"name": "bring", "description": "Bring it.", "input_schema": PARAMETERS}]
    use = {"type": "tool_use", "id": "c1", "name": "bring", "input": {}}
    told = {"type": "tool_result", "tool_use_id": "c1", "content": answer}
    turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [told]}]
    return {"messages": [TASK, *(turns if answer else [])], "tools": tools, "max_tokens": 99}


def response(answer: str | None) -> dict[str, Any]:
    tools = [{"type": "function", **FUNCTION}]
    call = {"type": "function_call", "call_id": "c1", "name": "bring", "arguments": "{}"}
    told = {"type": "function_call_output", "call_id": "c1", "output": answer}
    return {"input": [TASK, *([call, told] if answer else [])], "tools": tools}


BODIES = {"/v1/chat/completions": chat, "/v1/messages": message, "/v1/responses": response}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("answer", "reward"), [("Thanks from Ana.", 1.0), ("Nobody.", 0.25)])
def test_every_dialect_with_tools_ends_its_episodes_by_the_rules(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream, path: str, answer: str, reward: float
) -> None:
    client = serve(settings_of(address[1], outcome_rules=RULES))
    session = {"X-Session-ID": "e"}
    first = client.post(path, json=BODIES[path](None), headers=session)
    assert first.status_code == 200, first.text
    assert closing(client, "other", 1.0) == (404, "unknown_episode")
    then = client.post(path, json=BODIES[path](answer), headers=session)
    assert then.status_code == 200, then.text
    assert ended_with(client, "e", reward)


@pytest.mark.parametrize("path", BODIES)
def test_a_reply_that_calls_a_tool_is_not_final(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream, path: str
) -> None:
    client = serve(settings_of(address[1], outcome_rules=RULES))
    client.post(path, json=BODIES[path](None), headers={"X-Session-ID": "e"})
    assert is_open(client, "e")


@pytest.mark.parametrize("path", ["/v1/act", "/v1/score"])
def test_an_observation_in_words_ends_an_episode_too(serve: Serve, path: str) -> None:
    won = OutcomeRule(where="last_message", contains="You take the mug", outcome=1.0)
    client = serve(FAKES.model_copy(update={"outcome_rules": (won,)}))
    said = {"role": "user", "content": "You take the mug."}
    turns = [TASK, {"role": "assistant", "content": "Action: take the mug"}, said]
    body = DIALECTS[path] | {"messages": turns, "episode_id": "e"}
    assert client.post(path, json=body).status_code == 200
    assert ended_with(client, "e", 1.0)


def test_steps_after_the_end_by_a_rule_are_answered_and_belong_to_no_record(
    serve: Serve, tmp_path: Path, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    client = serve(settings_of(address[1], outcome_rules=RULES, episodes_dir=tmp_path))
    for answer in (None, "Thanks.", "Thanks.", "Nobody."):
        step = client.post("/v1/chat/completions", json=chat(answer), headers={"X-Session-ID": "e"})
        assert step.status_code == 200, step.text
    [tree] = [json.loads(line) for file in tmp_path.glob("trees-*") for line in file.read_text().splitlines()]
    assert len(tree["nodes"]) == 2, "the call and the final reply"
    closed = client.post("/v1/episodes/e/outcome", json={"reward": 1.0}).json()
    assert (closed["steps"], closed["recorded"]) == (2, True)


def test_the_header_comes_before_the_rules(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    client = serve(settings_of(address[1], outcome_rules=RULES))
    headers = {"X-Session-ID": "e", "X-QGuide-Outcome": "0.5"}
    client.post("/v1/chat/completions", json=chat("Thanks."), headers=headers)
    assert ended_with(client, "e", 0.5)
