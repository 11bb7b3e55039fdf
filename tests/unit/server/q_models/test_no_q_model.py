"""Servers whose settings name no Q model: only the embedded policy gets the embedded one."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.q_models.build import build_models
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import EMBEDDED, SCRIPTED, Settings
from tests.unit.server.conftest import Serve

Address = tuple[FakeUpstream, str]
TASK = [{"role": "user", "content": "Plan a weekend in Lisbon."}]
SAID = ["Action: look at Lisbon", "Action: inventory of Lisbon", "Action: go to Lisbon"]
DIALECTS = ("/v1/act", "/v1/chat/completions", "/v1/responses", "/v1/messages")


def behind(url: str, **more: Any) -> Settings:
    upstream = Upstream.model_validate({"url": url, "model": "gpt-4.1-mini", "retries": 0})
    return Settings(**{"policy": "mine", "upstreams": {"mine": upstream}} | more)


def ask(client: TestClient, path: str, **more: Any) -> dict[str, Any]:
    body = {"messages": TASK, "num_candidates": 3} | more
    if path != "/v1/act":
        options = {name: body.pop(name) for name in {"num_candidates", *more}}
        body |= {"model": "default", "max_tokens": 64, "qguide": options}
    if path == "/v1/responses":
        body = {"model": "default", "input": body["messages"], "qguide": body["qguide"]}
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer if path == "/v1/act" else answer["qguide"]


@pytest.fixture
def unnamed(serve: Serve, address: Address, upstream: FakeUpstream) -> TestClient:
    upstream.replies = SAID
    return serve(behind(address[1]))


@pytest.mark.parametrize("path", DIALECTS)
def test_an_upstream_is_served_unguided_and_the_answer_says_why(
    unnamed: TestClient, upstream: FakeUpstream, path: str
) -> None:
    guidance = ask(unnamed, path)
    assert guidance["guided"] is False
    assert "no Q model is named" in guidance["unguided_reason"]
    assert "judge:mine" in guidance["unguided_reason"]
    assert guidance["q_model"] == "none"
    assert [seen.get("n", 1) for seen in upstream.asked] == [1]


def test_the_log_says_once_that_nothing_is_guided(
    address: Address, upstream: FakeUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    build_models(behind(address[1]))
    said = [line for line in "".join(capsys.readouterr()).splitlines() if "no Q model" in line]
    assert len(said) == 1
    assert "--scorer judge:mine" in said[0]


def test_a_server_that_learns_asks_for_no_q_model(
    address: Address, upstream: FakeUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    build_models(behind(address[1], learn=True))
    said = "".join(capsys.readouterr())
    assert "no Q model is named" not in said
    assert "guides once a trial has shown that it helps" in said


def test_scores_are_refused_with_the_remedy(unnamed: TestClient) -> None:
    response = unnamed.post("/v1/score", json={"messages": TASK, "candidates": SAID})
    assert response.status_code == 404
    assert "--scorer" in response.json()["error"]["message"]


def test_a_caller_who_wants_no_fallback_is_refused_before_anything_is_drawn(
    unnamed: TestClient, upstream: FakeUpstream
) -> None:
    body = {"messages": TASK, "fallback": "error"}
    refused = unnamed.post("/v1/act", json=body | {"num_candidates": 3})
    assert refused.status_code == 404
    assert "no Q model is named" in refused.json()["error"]["message"]
    assert not upstream.asked
    assert unnamed.post("/v1/act", json=body | {"num_candidates": 1}).status_code == 200


def test_the_embedded_policy_keeps_its_q_model_and_an_upstream_beside_it_gets_none(
    serve: Serve, address: Address, upstream: FakeUpstream
) -> None:
    upstream.replies = SAID
    client = serve(behind(address[1], policy=EMBEDDED))
    own = client.post("/v1/act", json={"messages": TASK, "num_candidates": 3}).json()
    assert (own["guided"], own["q_model"]) == (False, EMBEDDED)
    assert own["unguided_reason"].startswith("outside what this Q model was trained on")
    other = ask(client, "/v1/act", policy="mine")
    assert (other["guided"], other["q_model"]) == (False, "none")
    wanted = ask(client, "/v1/act", policy="mine", q_model=EMBEDDED, out_of_domain="guide")
    assert (wanted["guided"], wanted["q_model"]) == (True, EMBEDDED)
    scored = client.post("/v1/score", json={"messages": TASK, "candidates": SAID}).json()
    assert scored["q_model"] == EMBEDDED


def test_a_named_q_model_guides_an_upstream(serve: Serve, address: Address, upstream: FakeUpstream) -> None:
    upstream.replies = SAID
    client = serve(behind(address[1], q_models={"default": SCRIPTED}))
    assert ask(client, "/v1/act")["guided"] is True


def test_episodes_can_be_split_between_a_q_model_and_none(
    serve: Serve, address: Address, upstream: FakeUpstream
) -> None:
    upstream.replies = SAID
    settings = behind(
        address[1], q_models={"none": "none", "shop": SCRIPTED}, aliases={"trial": {"none": 0.5, "shop": 0.5}}
    )
    client = serve(settings)
    answers = [ask(client, "/v1/act", q_model="trial", episode_id=f"e{n}") for n in range(12)]
    assert {(one["q_model"], one["guided"]) for one in answers} == {("none", False), ("shop", True)}


def test_a_default_that_was_moved_guides_from_then_on(serve: Serve, address: Address, upstream: FakeUpstream) -> None:
    upstream.replies = SAID
    settings = behind(address[1], q_models={"none": "none", "shop": SCRIPTED}, admin=True)
    client = serve(settings)
    assert ask(client, "/v1/act")["guided"] is False
    client.post("/v1/models/alias", json={"alias": "default", "to": "shop"}).raise_for_status()
    assert ask(client, "/v1/act")["guided"] is True
