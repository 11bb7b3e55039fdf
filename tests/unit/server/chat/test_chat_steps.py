"""POST /v1/chat/completions as a step of an episode: perturbed, adaptive, remembered."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from qguide.server.q_models.build import build_models
from qguide.server.q_models.registry import Models
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import Settings
from tests.support.serving import serving_app
from tests.unit.server.conftest import FAKES, Serve

TASK = {"role": "user", "content": "You see a desk. Your task is to: take the mug."}
TOOL = {
    "type": "function",
    "function": {"name": "go", "parameters": {"type": "object", "properties": {"to": {"enum": ["desk", "shelf"]}}}},
}


@pytest.fixture
def upstream() -> Iterator[tuple[FakeUpstream, str]]:
    state = FakeUpstream()
    with serving_app(state.app()) as url:
        yield state, f"{url}/v1"


def settings_of(url: str, **more: Any) -> Settings:
    served = Upstream.model_validate({"url": url, "model": "fake-1", "retries": 0})
    return FAKES.model_copy(update={"upstreams": {"demo": served}, "policy": "demo"} | more)


def ask(
    client: TestClient,
    messages: list[Any],
    *,
    headers: dict[str, str] | None = None,
    tools: list[Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    body = {"messages": messages, "qguide": options} | ({"tools": tools} if tools else {})
    response = client.post("/v1/chat/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def then(messages: list[Any], answer: dict[str, Any], observation: str) -> list[Any]:
    """The next step's messages, as an agent on OpenAI's API writes them."""
    message = answer["choices"][0]["message"]
    calls = message.get("tool_calls")
    said = {"role": "user", "content": observation}
    if calls:
        said |= {"role": "tool", "tool_call_id": calls[0]["id"]}
    return [*messages, message, said]


def test_perturbed_candidates_are_drawn_under_paraphrases_that_usage_counts(
    serve: Serve, upstream: tuple[FakeUpstream, str]
) -> None:
    state, url = upstream
    client = serve(settings_of(url, paraphraser="scripted"))
    guidance = ask(client, [TASK], num_candidates=3, perturb=True)["qguide"]
    assert (guidance["perturbed"], guidance["warnings"]) == (2, [])
    assert guidance["usage"]["paraphrase"]["completion_tokens"] > 0
    assert guidance["timings_ms"]["paraphrase"] > 0
    tasks = {body["messages"][0]["content"].partition("task is to: ")[2] for body in state.asked}
    assert len(tasks) == 3
    assert "take the mug." in tasks
    again = ask(client, [TASK], num_candidates=3, headers={"X-QGuide-Perturb": "true"})["qguide"]
    assert again["usage"]["paraphrase"] == {"prompt_tokens": 0, "completion_tokens": 0}


def test_an_upstream_may_paraphrase_and_its_tokens_are_counted(
    serve: Serve, upstream: tuple[FakeUpstream, str]
) -> None:
    state, url = upstream
    client = serve(settings_of(url, paraphraser="demo"))
    usage = ask(client, [TASK], num_candidates=2, perturb=True)["qguide"]["usage"]
    asked = state.asked[0]["messages"][0]["content"]
    assert asked == "Paraphrase the text: take the mug."
    assert usage["paraphrase"] == {
        "prompt_tokens": len(asked.split()),
        "completion_tokens": len(DEFAULT_REPLIES[0].split()),
    }


def test_a_reasoning_model_acts_and_paraphrases(serve: Serve, upstream: tuple[FakeUpstream, str]) -> None:
    state, url = upstream
    state.fault = "reasoning"
    thinks = Upstream.model_validate({"url": url, "model": "o", "max_tokens_name": "max_completion_tokens"})
    more = {"upstreams": {"demo": thinks}, "paraphraser": "demo", "paraphrase_max_tokens": 0}
    client = serve(settings_of(url, **more))
    asked: dict[str, Any] = {"messages": [TASK], "num_candidates": 2}
    plain = asked | {"temperature": None, "max_tokens": None, "perturb": True}
    answer = client.post("/v1/act", json=plain)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["perturbed"], answer.json()["warnings"]) == (1, [])
    sizes = {"max_tokens", "max_completion_tokens"}
    assert all(body.keys().isdisjoint(sizes) for body in state.asked)
    assert [body.get("temperature") for body in state.asked] == [1.0, None, None]
    limited = client.post("/v1/act", json=plain | {"max_tokens": 99})
    assert limited.status_code == 200, limited.text
    assert state.asked[-1]["max_completion_tokens"] == 99
    said = client.post("/v1/chat/completions", json={"messages": [TASK], "max_tokens": 98})
    assert said.status_code == 200, said.text
    assert state.asked[-1]["max_completion_tokens"] == 98
    warned = client.post("/v1/act", json=asked).json()["warnings"]
    assert warned == ["left out, because the upstream refuses it: temperature"]


def test_adaptive_m_rises_over_the_episodes_previous_q(client: TestClient) -> None:
    headers = {"X-QGuide-Episode-Id": "e", "X-QGuide-Adaptive": "true"}
    first = ask(client, [TASK], num_candidates=1, headers=headers)
    assert first["qguide"]["q_values"] == [0.5]
    messages = then([TASK], first, "a desk")
    guidance = ask(client, messages, num_candidates=6, headers=headers)["qguide"]
    assert guidance["episode_id"] == "e"
    assert (guidance["num_candidates"], guidance["draws_saved"]) == (2, 4)
    lost = ask(client, messages, num_candidates=6, adaptive=True, episode_id="other")["qguide"]
    assert (lost["num_candidates"], lost["draws_saved"]) == (6, 0)


def test_adaptive_m_draws_as_many_as_are_to_be_returned(serve: Serve, upstream: tuple[FakeUpstream, str]) -> None:
    client = serve(settings_of(upstream[1]))
    options = {"num_candidates": 6, "adaptive": True, "previous_q": -1.0}
    body = {"messages": [TASK], "n": 3, "qguide": options}
    answer = client.post("/v1/chat/completions", json=body).json()
    assert len(answer["choices"]) == 3
    assert answer["qguide"]["num_candidates"] == 4  # two batches of two


def test_without_a_q_adaptive_m_takes_the_first_candidate_and_the_episode_goes_on(serve: Serve) -> None:
    def dead_scorer(settings: Settings) -> Models:
        models = build_models(settings)
        models.runtime.thread.close()
        return models

    client = serve(build=dead_scorer)
    options: dict[str, Any] = {"num_candidates": 6, "adaptive": True, "previous_q": 0.0}
    options["episode_id"] = "e"
    guidance = ask(client, [TASK], fallback="first", **options)["qguide"]
    assert (guidance["guided"], guidance["q_values"]) == (False, None)
    assert guidance["num_candidates"] == 2
    refused = client.post("/v1/chat/completions", json={"messages": [TASK], "qguide": options})
    assert refused.status_code == 503
    ended = client.post("/v1/episodes/e/outcome", json={"reward": 0.0}).json()
    assert ended["steps"] == 1


def test_steps_of_an_episode_become_a_record_tool_calls_too(
    serve: Serve, upstream: tuple[FakeUpstream, str], tmp_path: Path
) -> None:
    client = serve(settings_of(upstream[1], episodes_dir=tmp_path))
    first = ask(client, [TASK], tools=[TOOL], num_candidates=3, episode_id="e")
    messages = then([TASK], first, "a mug")
    second = ask(client, messages, tools=[TOOL], num_candidates=3, episode_id="e")
    ended = client.post("/v1/episodes/e/outcome", json={"reward": 1.0}).json()
    assert (ended["steps"], ended["recorded"]) == (2, True), ended
    [path] = tmp_path.glob("trees-*.jsonl")
    nodes = json.loads(path.read_text())["nodes"]
    said = [_text(answer) for answer in (first, second)]
    assert [node["action"] for node in nodes] == said
    assert [node["observation"] for node in nodes] == ["a mug", ""]
    for node, answer in zip(nodes, (first, second), strict=True):
        calls = [call["function"] for call in answer["choices"][0]["message"].get("tool_calls") or ()]
        written = node.get("reply", {}).get("tool_calls", [])
        assert [(call["name"], call["arguments"]) for call in written] == [
            (call["name"], call["arguments"]) for call in calls
        ]
    refused = client.post("/v1/chat/completions", json={"messages": [TASK], "qguide": {"episode_id": "e"}})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "episode_closed")


def _text(answer: dict[str, Any]) -> str:
    message = answer["choices"][0]["message"]
    calls = [
        f"Action: {call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls", ())
    ]
    return "\n".join([message["content"], *calls] if message["content"] else calls)
