"""Keys, limits and budgets on the routes of third-party clients, and on episodes."""

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from qguide.server.http.keys import create_key
from tests.unit.server.conftest import FAKES, Serve

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "Your task is to: look"}
ASKED = {"messages": [USER], "qguide": {"num_candidates": 2}}
STEP = {"messages": [USER], "episode_id": "e", "num_candidates": 2}
RERANK = {"query": "look", "documents": ["Action: look", "Action: go to desk 1"]}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def openai_error(response: Any) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code", "request_id"}
    return error


def answer_to(serve: Serve, path: str, body: dict[str, Any], **settings: Any) -> Any:
    answer = serve(FAKES.model_copy(update=settings)).post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer


def costs(serve: Serve, tokens: int, path: str, body: dict[str, Any], **settings: Any) -> None:
    """A budget of so many tokens is used up by the request, and one of one more is not."""
    assert tokens > 0
    for budget, status in ((tokens, 429), (tokens + 1, 422)):
        client = serve(FAKES.model_copy(update={"tokens_per_day": budget} | settings))
        assert client.post(path, json=body).status_code == 200
        assert client.post("/v1/score", json={}).status_code == status


def test_a_missing_key_is_refused_in_openais_shape(serve: Serve, tmp_path: Path) -> None:
    keys_file = tmp_path / "keys.json"
    ada = create_key(keys_file, "ada", requests_per_minute=1)
    client = serve(FAKES.model_copy(update={"keys_file": keys_file}))
    stranger = client.post(CHAT, json=ASKED)
    assert stranger.status_code == 401
    assert stranger.headers["www-authenticate"] == "Bearer"
    assert openai_error(stranger)["type"] == "authentication_error"
    assert openai_error(stranger)["code"] == "invalid_api_key"
    assert client.post(CHAT, json=ASKED, headers=bearer(ada)).status_code == 200
    again = client.post(CHAT, json=ASKED, headers=bearer(ada))
    assert again.status_code == 429
    assert int(again.headers["retry-after"]) > 1
    error = openai_error(again)
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")


def test_a_draining_server_says_so_in_openais_shape(client: TestClient) -> None:
    app = client.app
    assert isinstance(app, FastAPI)
    app.state.drain.refusing = True
    refused = client.post(CHAT, json=ASKED)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    error = openai_error(refused)
    assert (error["type"], error["code"]) == ("server_error", "draining")


@pytest.mark.parametrize("header", [{"X-QGuide-Timeout-S": "30"}, {"X-QGuide-Replica": "r1"}])
def test_what_is_said_to_server_or_proxy_is_no_option_of_chat_completions(
    client: TestClient, header: dict[str, str]
) -> None:
    answer = client.post(CHAT, json=ASKED, headers=header)
    assert answer.status_code == 200, answer.text


def tokens_of(answer: dict[str, Any]) -> int:
    """The cost that a chat completion reports."""
    usage = answer["qguide"]["usage"]
    paraphrased: int = sum(usage["paraphrase"].values())
    total: int = answer["usage"]["total_tokens"] + usage["score"]["scored_tokens"]
    return total + paraphrased


def test_chat_completions_are_charged_streamed_or_not(serve: Serve) -> None:
    tokens = tokens_of(answer_to(serve, CHAT, ASKED).json())
    costs(serve, tokens, CHAT, ASKED)
    costs(serve, tokens, CHAT, ASKED | {"stream": True})


def test_paraphrases_are_charged(serve: Serve) -> None:
    body = {"messages": [USER], "qguide": {"num_candidates": 2, "perturb": True}}
    answer = answer_to(serve, CHAT, body, paraphraser="scripted").json()
    assert answer["qguide"]["usage"]["paraphrase"]["completion_tokens"] > 0
    costs(serve, tokens_of(answer), CHAT, body, paraphraser="scripted")


def test_rerankers_are_charged(serve: Serve) -> None:
    usage = answer_to(serve, "/v1/rerank", RERANK).json()["usage"]
    for path in ("/v1/rerank", "/v2/rerank"):
        costs(serve, usage["total_tokens"], path, RERANK)
    pairs = {"queries": RERANK["query"], "documents": RERANK["documents"]}
    costs(serve, usage["total_tokens"], "/score", pairs)


def test_an_episode_belongs_to_the_key_that_began_it(serve: Serve, tmp_path: Path) -> None:
    keys_file = tmp_path / "keys.json"
    ada, bob = create_key(keys_file, "ada"), create_key(keys_file, "bob")
    client = serve(FAKES.model_copy(update={"keys_file": keys_file}))
    assert client.post("/v1/act", json=STEP, headers=bearer(ada)).status_code == 200
    end = "/v1/episodes/e/outcome"
    foreign = client.post(end, json={"reward": 0.0}, headers=bearer(bob))
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (404, "unknown_episode")
    own = client.post(end, json={"reward": 1.0}, headers=bearer(ada))
    assert (own.status_code, own.json()["steps"]) == (200, 1)
    assert client.post("/v1/act", json=STEP, headers=bearer(bob)).status_code == 200
