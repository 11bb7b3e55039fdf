"""Episodes of agents that can set only a base URL or a header."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.http.keys import create_key
from qguide.server.settings.settings import Settings
from tests.unit.server.conftest import FAKES, Serve, settings_of

TASK = {"role": "user", "content": "You see a desk. Your task is to: take the mug."}
TURNS = [TASK, {"role": "assistant", "content": "Action: look"}]
DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/act": {"messages": [TASK]},
    "/v1/chat/completions": {"messages": [TASK]},
    "/v1/messages": {"messages": [TASK], "max_tokens": 9},
    "/v1/responses": {"input": [TASK]},
    "/v1/completions": {"prompt": TASK["content"]},
    "/classify": {"messages": TURNS},
    "/pooling": {"messages": TURNS},
    "/verify": {"question": TASK["content"], "answer": "Action: look"},
    "/v1/score": {"messages": [TASK], "candidates": ["Action: look", "Action: inventory"]},
    "/v1/rerank": {"query": TASK["content"], "documents": ["Action: look", "Action: inventory"]},
    "/v2/rerank": {"query": TASK["content"], "documents": ["Action: look", "Action: inventory"]},
    "/rerank": {"query": TASK["content"], "documents": ["Action: look", "Action: inventory"]},
}


def steps_of(client: TestClient, episode: str) -> int | None:
    """Guided steps of an episode, which this ends; None if it is unknown."""
    answer = client.post(f"/v1/episodes/{episode}/outcome", json={"reward": 1.0})
    if answer.status_code == 404:
        return None
    steps: int = answer.json()["steps"]
    return steps


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("by", ["url", "header"])
def test_every_dialect_takes_the_episode_from_the_url_or_the_header(client: TestClient, path: str, by: str) -> None:
    url, headers = (f"/episodes/e-7{path}", {}) if by == "url" else (path, {"X-Session-ID": "e-7"})
    answer = client.post(url, json=DIALECTS[path], headers=headers)
    assert answer.status_code == 200, answer.text
    assert steps_of(client, "e-7") == 1


def test_the_requests_own_id_comes_before_the_urls_and_that_before_the_headers(client: TestClient) -> None:
    def ask(url: str, headers: dict[str, str], **options: Any) -> Any:
        body = {"messages": [TASK], "qguide": options}
        answer = client.post(f"{url}/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()["qguide"].get("episode_id")

    header = {"X-Session-ID": "header"}
    assert ask("", {}) is None
    assert ask("", header) == "header"
    assert ask("/episodes/url", header) == "url"
    assert ask("/episodes/url", header, episode_id="body") == "body"
    assert ask("/episodes/url", header | {"X-QGuide-Episode-Id": "option"}) == "option"
    for episode in ("header", "url", "body", "option"):
        assert steps_of(client, episode) == 1


def test_an_outcome_can_be_sent_to_the_same_base_url(client: TestClient) -> None:
    assert client.post("/episodes/e-7/v1/act", json={"messages": [TASK]}).status_code == 200
    ended = client.post("/episodes/e-7/v1/episodes/e-7/outcome", json={"reward": 1.0})
    assert (ended.status_code, ended.json()["steps"]) == (200, 1)
    again = client.post("/episodes/e-7/v1/act", json={"messages": [TASK]})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "episode_closed")


def test_an_id_is_percent_encoded_and_reaches_the_upstream_so(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    client = serve(settings_of(address[1]))
    body = {"messages": [TASK], "qguide": {"num_candidates": 2}}
    encoded = "tasks%2Fk%C3%BCche%201"
    for path, headers in (
        (f"/episodes/{encoded}/v1/chat/completions", {}),
        ("/v1/chat/completions", {"X-Session-ID": encoded}),
    ):
        answer = client.post(path, json=body, headers=headers)
        assert answer.json()["qguide"]["episode_id"] == "tasks/küche 1"
    assert set(upstream.sessions) == {"tasks/k%C3%BCche%201"}


@pytest.mark.parametrize("named", ["x" * 257, "a%0Ab"])
def test_an_unusable_id_is_refused_with_its_place(client: TestClient, named: str) -> None:
    by_url = client.post(f"/episodes/{named}/v1/chat/completions", json={"messages": [TASK]})
    by_header = client.post("/v1/act", json={"messages": [TASK]}, headers={"X-Session-ID": named})
    for answer, place in ((by_url, "path /episodes/ID/"), (by_header, "header X-Session-ID")):
        assert answer.status_code == 400
        assert place in answer.json()["error"]["message"]
    assert set(by_url.json()["error"]) >= {"type", "param"}, "OpenAI's format on OpenAI's path"


@pytest.mark.parametrize("path", ["/episodes", "/episodes/", "/episodes/e", "/episodes//v1/act"])
def test_other_paths_below_episodes_do_not_exist(client: TestClient, path: str) -> None:
    assert client.post(path, json={"messages": [TASK]}).status_code == 404


def test_a_key_is_needed_below_an_episode_as_well(serve: Serve, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    key = create_key(keys, "agent")
    client = serve(FAKES.model_copy(update={"keys_file": keys}))
    path = "/episodes/healthz/v1/act"
    assert client.post(path, json={"messages": [TASK]}).status_code == 401
    headers = {"Authorization": f"Bearer {key}"}
    assert client.post(path, json={"messages": [TASK]}, headers=headers).status_code == 200


def test_adaptive_m_can_be_the_operators_default_for_episodes(serve: Serve) -> None:
    client = serve(Settings(**FAKES.model_dump() | {"adaptive": True}))
    messages: list[Any] = [TASK]

    def step(path: str, **body: Any) -> Any:
        answer = client.post(path, json={"messages": messages, "num_candidates": 3} | body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    first = step("/episodes/e/v1/act")
    assert len(first["candidates"]) == 3, "an episode's first step has nothing to rise over"
    messages += [{"role": "assistant", "content": "Action: look"}, {"role": "user", "content": "you see a mug"}]
    adaptive = step("/episodes/e/v1/act", previous_q=-1.0)
    assert (len(adaptive["candidates"]), adaptive["draws_saved"]) == (2, 1)
    assert len(step("/episodes/e/v1/act", previous_q=-1.0, adaptive=False)["candidates"]) == 3
    assert len(step("/v1/act")["candidates"]) == 3, "not a step of an episode"


def test_an_upstream_tells_equal_ids_of_two_keys_apart(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    headers = [{"Authorization": f"Bearer {create_key(keys, name)}"} for name in ("ada", "bob")]
    client = serve(settings_of(address[1], keys_file=keys))
    for given in (*headers, headers[0], headers[0]):
        path = "/v1/act" if len(upstream.sessions) == 3 else "/episodes/e-7/v1/act"
        answer = client.post(path, json={"messages": [TASK], "num_candidates": 1}, headers=given)
        assert answer.status_code == 200, answer.text
    ada, bob, again, none = upstream.sessions
    assert ada == again != bob
    assert none is None
    assert not any("e-7" in str(session) for session in (ada, bob))


def test_only_draws_carry_the_session(serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream) -> None:
    client = serve(settings_of(address[1], paraphraser="demo"))
    asked = {"messages": [TASK], "num_candidates": 2, "perturb": True}
    answer = client.post("/episodes/e-7/v1/act", json=asked)
    assert answer.status_code == 200, answer.text
    assert upstream.sessions == [None, "e-7", "e-7"]
