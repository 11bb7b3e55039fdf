"""Paths of other services' base URLs, and names of models that are not served."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.http.keys import create_key
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import SCRIPTED
from tests.unit.server.conftest import FAKES, Serve, settings_of

USER = {"role": "user", "content": "You see a desk. Your task is to: take the mug."}
CHAT: dict[str, Any] = {"messages": [USER]}
MESSAGE = {"messages": [USER], "max_tokens": 9}
ONLY = FAKES.model_copy(update={"q_models": {"demo@1": SCRIPTED}, "unknown_models": "only"})


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21", CHAT, "chat"),
        ("/openai/deployments/a/b/chat/completions", CHAT, "chat"),
        ("/openai/v1/chat/completions", CHAT, "chat"),
        ("/openai/v1/responses", {"input": [USER]}, "response"),
        ("/openai/responses", {"input": [USER]}, "response"),
        ("/chat/completions", CHAT, "chat"),
        ("/completions", {"prompt": USER["content"]}, "text_completion"),
        ("/responses", {"input": [USER]}, "response"),
        ("/v1/v1/messages", MESSAGE, "message"),
        ("/messages", MESSAGE, "message"),
        ("/episodes/e-7/chat/completions", CHAT, "chat"),
    ],
)
def test_paths_of_other_base_urls_are_served(serve: Serve, path: str, body: dict[str, Any], kind: str) -> None:
    answer = serve(ONLY).post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert str(answer.json().get("object", answer.json().get("type"))).startswith(kind)


def test_models_are_listed_without_v1_and_other_paths_stay_unknown(client: TestClient) -> None:
    assert client.get("/openai/v1/models").json() == client.get("/models").json()
    for path in ("/openai/v1/act", "/act", "/v1/openai/v1/responses", "/v1/v1/v1/messages"):
        answer = client.post(path, json=CHAT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), path


def test_errors_speak_the_dialect_of_the_path_that_was_meant(client: TestClient) -> None:
    answer = client.post("/v1/v1/messages", json={**MESSAGE, "model": "gpt-9"})
    assert answer.json()["type"] == "error"
    assert "Request-ID" in answer.headers


def test_the_deployment_is_the_model_of_a_body_that_names_none(serve: Serve, address: tuple[FakeUpstream, str]) -> None:
    other = Upstream.model_validate({"url": address[1], "model": "fake-2", "retries": 0})
    settings = settings_of(address[1])
    client = serve(settings.model_copy(update={"upstreams": {**settings.upstreams, "other": other}}))
    path = "/openai/deployments/other/chat/completions"
    assert client.post(path, json=CHAT).json()["model"] == "other"
    assert client.post(path, json={**CHAT, "model": "demo"}).json()["model"] == "demo"
    assert client.post(path.replace("other", "nope"), json=CHAT).status_code == 404


def test_azures_header_holds_a_key(serve: Serve, tmp_path: Path) -> None:
    key = create_key(tmp_path / "keys.json", "me")
    client = serve(ONLY.model_copy(update={"keys_file": tmp_path / "keys.json"}))
    path = "/openai/deployments/gpt-4o/chat/completions"
    assert client.post(path, json=CHAT, headers={"api-key": key}).status_code == 200
    assert client.post(path, json=CHAT, headers={"api-key": "nope"}).status_code == 401


@pytest.mark.parametrize(
    ("path", "body", "served"),
    [
        ("/v1/chat/completions", CHAT, "scripted"),
        ("/v1/messages", MESSAGE, "scripted"),
        ("/v1/responses", {"input": [USER]}, "scripted"),
        ("/v2/rerank", {"query": "a", "documents": ["b", "c"]}, "demo"),
        ("/score", {"text_1": "a", "text_2": "b"}, "demo"),
        ("/classify", {"messages": [USER, {"role": "assistant", "content": "look"}]}, "demo"),
    ],
)
def test_a_foreign_name_means_the_only_model_and_a_header_says_so(
    serve: Serve, path: str, body: dict[str, Any], served: str
) -> None:
    client = serve(ONLY)
    answer = client.post(path, json={**body, "model": "gpt-4o"})
    assert (answer.status_code, answer.headers["X-QGuide-Model"]) == (200, served), answer.text
    assert "X-QGuide-Model" not in client.post(path, json={**body, "model": served}).headers
    ours = {"messages": [USER], "candidates": ["look"], "q_model": "gpt-4o"}
    assert client.post("/v1/score", json=ours).status_code == 404, "a typo in an option of ours"


def test_a_foreign_name_is_unknown_where_several_models_are_served(
    serve: Serve, address: tuple[FakeUpstream, str]
) -> None:
    settings = settings_of(address[1], unknown_models="only")
    more = {"upstreams": {**settings.upstreams, "other": settings.upstreams["demo"]}}
    client = serve(settings.model_copy(update=more))
    assert client.post("/v1/chat/completions", json={**CHAT, "model": "a"}).status_code == 404
    ranked = {"query": "a", "documents": ["b"], "model": "a"}
    assert client.post("/v2/rerank", json=ranked).status_code == 404
    assert client.get("/v1/models/a").status_code == 404


def test_a_model_has_what_anthropics_clients_read(serve: Serve) -> None:
    client = serve(ONLY)
    [card] = client.get("/v1/models").json()["data"]
    assert (card["type"], card["display_name"]) == ("model", "scripted")
    assert card["created_at"].startswith("20")
    assert client.get("/v1/models/claude-9").json() == card


def test_an_upstream_s_context_is_told_as_each_dialect_has_it(serve: Serve, address: tuple[FakeUpstream, str]) -> None:
    demo = settings_of(address[1]).upstreams["demo"].model_copy(update={"context": 200_000})
    client = serve(settings_of(address[1], upstreams={"demo": demo}))
    [card] = client.get("/v1/models").json()["data"]
    assert {card[name] for name in ("context", "max_model_len", "max_input_tokens")} == {200_000}
    [model] = client.get("/v1beta/models").json()["models"]
    assert model["inputTokenLimit"] == 200_000
    shown = client.post("/api/show", json={"model": "demo"}).json()["model_info"]
    assert shown["qguide.context_length"] == 200_000
