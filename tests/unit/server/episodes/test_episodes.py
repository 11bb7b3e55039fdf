"""Episodes over HTTP: previous Q, adaptive M and outcomes."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from qguide.qnet.errors import QGuideError
from qguide.server.http.keys import create_key
from tests.unit.server.conftest import FAKES, Serve
from tests.unit.server.episodes.conftest import TASK, act, end, play, recording, then


def test_adaptive_m_draws_until_q_rises_over_the_previous_steps(client: TestClient) -> None:
    first = act(client, [TASK], adaptive=True, num_candidates=6)
    assert (len(first["candidates"]), first["draws_saved"]) == (6, 0)
    messages = then([TASK], first["action"], "a desk")
    # The previous Q is 0.75, the highest there is: nothing rises over it.
    assert act(client, messages, adaptive=True, num_candidates=6)["draws_saved"] == 0
    lower = act(client, messages, adaptive=True, num_candidates=6, previous_q=0.6)
    assert (len(lower["candidates"]), lower["draws_saved"]) == (2, 4)
    assert "qguide_draws_saved_total 4.0" in client.get("/metrics").text


def test_a_state_that_is_asked_for_again_is_not_its_own_predecessor(client: TestClient) -> None:
    act(client, [TASK], num_candidates=1, adaptive=True)  # Q 0.5
    messages = then([TASK], "Action: look", "a desk")
    drawn = [act(client, messages, adaptive=True, num_candidates=6) for _ in range(2)]
    assert [len(answer["candidates"]) for answer in drawn] == [2, 2]


def test_another_q_models_value_is_no_previous_q(client: TestClient) -> None:
    assert act(client, [TASK], num_candidates=1, adaptive=True)["candidates"][0]["q_value"] == 0.5
    messages = then([TASK], "Action: look", "a desk")
    answer = act(client, messages, adaptive=True, num_candidates=6, q_model="other")
    assert answer["draws_saved"] == 0


def test_a_choice_that_no_q_was_read_for_is_no_previous_q(client: TestClient) -> None:
    assert act(client, [TASK], num_candidates=1)["candidates"][0]["q_value"] is None
    messages = then([TASK], "Action: look", "a desk")
    assert act(client, messages, adaptive=True, num_candidates=6)["draws_saved"] == 0


def test_adaptive_m_without_anything_to_rise_over_is_refused(client: TestClient) -> None:
    response = client.post("/v1/act", json={"messages": [TASK], "adaptive": True})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_request")
    assert "neither episode_id nor previous_q" in error["message"]


def test_perturbation_without_a_paraphraser_names_the_setting(client: TestClient) -> None:
    response = client.post("/v1/act", json={"messages": [TASK], "perturb": True})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_request")
    assert "set QGUIDE_PARAPHRASER" in error["message"]


def test_perturbed_candidates_are_counted_and_their_cost_is_said(serve: Serve) -> None:
    client = serve(FAKES.model_copy(update={"paraphraser": "scripted"}))
    answer = act(client, [TASK], perturb=True)
    assert (answer["perturbed"], answer["warnings"]) == (2, [])
    assert answer["usage"]["paraphrase_tokens"] > 0
    assert answer["timings_ms"]["paraphrase"] > 0
    again = act(client, [TASK], perturb=True, adaptive=True)
    assert again["usage"]["paraphrase_tokens"] == 0
    assert act(client, [TASK])["perturbed"] == 0
    misplaced = client.post("/v1/act", json={"messages": [TASK], "perturb": True, "task": "take the cup"})
    assert (misplaced.status_code, misplaced.json()["error"]["code"]) == (400, "invalid_request")


def test_a_paraphraser_is_loaded_as_a_policy_is(serve: Serve, tmp_path: Path) -> None:
    settings = FAKES.model_copy(update={"paraphraser": str(tmp_path / "nowhere")})
    with pytest.raises(QGuideError, match="nowhere"):
        serve(settings)


def test_an_outcome_closes_an_episode_once(client: TestClient) -> None:
    play(client)
    first, again = end(client, 0.5), end(client, 0.5)
    assert first.status_code == again.status_code == 200
    assert first.json() == again.json()
    assert (first.json()["steps"], first.json()["recorded"]) == (3, False)
    assert "QGUIDE_EPISODES_DIR" in first.json()["reason"]
    other = end(client, 1.0)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "episode_closed")
    assert "ended with a reward of 0.5, not 1.0" in other.json()["error"]["message"]


@pytest.mark.parametrize("field", ["action", "observation"])
def test_half_a_character_is_no_text(client: TestClient, field: str) -> None:
    play(client, steps=1)
    response = client.post(
        "/v1/episodes/e/outcome",
        content=json.dumps({"reward": 1, field: "a\ud800"}),
        headers={"content-type": "application/json"},
    )
    assert response.status_code == 422
    assert field in response.json()["error"]["message"]


def test_a_key_cannot_push_out_anothers_open_episodes(serve: Serve, tmp_path: Path) -> None:
    ada, eve = ({"X-API-Key": create_key(tmp_path / "keys.json", name)} for name in ("ada", "eve"))
    client = serve(recording(tmp_path, keys_file=tmp_path / "keys.json", episodes_memory_bytes=20_000))
    body = {"messages": [TASK], "num_candidates": 1}
    assert client.post("/v1/act", json=body | {"episode_id": "e"}, headers=ada).status_code == 200
    for number in range(100):
        given = body | {"episode_id": f"flood {number}"}
        assert client.post("/v1/act", json=given, headers=eve).status_code == 200
    answers = [
        client.post(f"/v1/episodes/{episode}/outcome", json={"reward": 1}, headers=key).status_code
        for key, episode in ((ada, "e"), (eve, "flood 0"), (eve, "flood 99"))
    ]
    assert answers == [200, 404, 200]


@pytest.mark.parametrize("episode_id", ["a\nb", "\n", "a\x00", "\x7f", "a\r"])
def test_an_id_that_no_address_can_name_is_refused(client: TestClient, episode_id: str) -> None:
    """Otherwise the episode would begin and could never end."""
    user = {"role": "user", "content": "look"}
    for path, more in (("/v1/act", {}), ("/v1/score", {"candidates": ["go"]})):
        body = {"messages": [user], "episode_id": episode_id} | more
        response = client.post(path, json=body)
        assert response.status_code == 422
        assert "episode_id" in response.json()["error"]["message"]


@pytest.mark.parametrize("episode_id", ["a/b", "a b", "a?b#c", "é", "…", "a/outcome", "\u2028"])
def test_every_id_that_begins_an_episode_can_end_it(client: TestClient, episode_id: str) -> None:
    body = {"messages": [{"role": "user", "content": "look"}], "episode_id": episode_id}
    assert client.post("/v1/act", json=body).status_code == 200
    path = f"/v1/episodes/{quote(episode_id, safe='')}/outcome"
    assert client.post(path, json={"reward": 1.0}).status_code == 200


def test_an_outcome_without_an_episode_is_404(client: TestClient) -> None:
    response = end(client, episode="never/seen")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "unknown_episode")


@pytest.mark.parametrize("episode_id", ["a\nb", "\n", "a\r\n", "a\x00", "\x85"])
def test_an_id_with_a_control_character_is_unknown_like_any_other(client: TestClient, episode_id: str) -> None:
    """A line break in it missed the route, and its 404 was in another shape."""
    answer = client.post(f"/v1/episodes/{quote(episode_id, safe='')}/outcome", json={"reward": 1.0})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "unknown_episode")
    assert set(error) == {"code", "message", "request_id"}


@pytest.mark.parametrize("reward", ["NaN", "Infinity", '"1"', "null"])
def test_a_reward_is_a_finite_number(client: TestClient, reward: str) -> None:
    play(client, steps=1)
    response = client.post(
        "/v1/episodes/e/outcome", content=f'{{"reward": {reward}}}', headers={"content-type": "application/json"}
    )
    assert (response.status_code, response.json()["error"]["code"]) == (422, "malformed_body")


@pytest.mark.parametrize("solved", [True, False])
def test_a_reward_may_be_a_truth_value_as_in_the_header(client: TestClient, solved: bool) -> None:
    play(client, steps=1)
    answer = client.post("/v1/episodes/e/outcome", json={"reward": solved})
    assert (answer.status_code, answer.text.count(f'"reward":{float(solved)}')) == (200, 1)
    body = client.get("/openapi.json").json()["components"]["schemas"]["OutcomeRequest"]
    assert {"type": "boolean"} in body["properties"]["reward"]["anyOf"]


@pytest.mark.parametrize("reward", [1e308, -1e308, 100.5, -101])
def test_a_reward_out_of_bounds_is_refused_and_the_episode_stays_open(client: TestClient, reward: float) -> None:
    play(client, steps=1)
    for _ in range(2):
        error = end(client, reward).json()["error"]
        assert error["code"] == "invalid_request"
        assert f"reward is {reward:g}; this server takes -100 to 100" in error["message"]
    assert end(client, -100).status_code == 200
    rewards = [line for line in client.get("/metrics").text.splitlines() if "reward_total{" in line]
    assert {float(line.split()[-1]) for line in rewards} == {0.0, 100.0}


def test_the_bounds_of_rewards_are_the_operators(serve: Serve) -> None:
    client = serve(FAKES.model_copy(update={"min_reward": 0.0, "max_reward": 1.0}))
    play(client, steps=1)
    assert end(client, 1.5).status_code == end(client, -0.5).status_code == 400
    assert end(client, 1.0).status_code == 200


@pytest.mark.parametrize("path", ["/v1/act", "/v1/score", "/v1/rerank"])
def test_an_ended_episode_takes_no_more_steps(client: TestClient, path: str) -> None:
    play(client)
    end(client)
    body: dict[str, Any] = {"messages": [TASK], "episode_id": "e"}
    body |= {"/v1/score": {"candidates": ["go"]}, "/v1/rerank": {"documents": ["go"]}}.get(path, {})
    response = client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (409, "episode_closed")
    assert "another episode_id" in response.json()["error"]["message"]


def test_the_replica_is_named_where_the_operator_named_it(serve: Serve, client: TestClient) -> None:
    assert "x-qguide-replica" not in client.get("/healthz").headers
    named = serve(FAKES.model_copy(update={"replica": "gpu-3"}))
    assert named.get("/healthz").headers["x-qguide-replica"] == "gpu-3"
