"""POST /v1/act."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

TASK = [{"role": "user", "content": "You see a desk. Your task is to: take the mug."}]
TWO_STEPS = [
    *TASK,
    {"role": "assistant", "content": "Action: go to desk"},
    {"role": "user", "content": "you see a mug"},
]


def act(client: TestClient, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/act", json={"messages": TASK} | body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_the_action_is_the_candidate_with_the_highest_q(client: TestClient) -> None:
    answer = act(client, num_candidates=3)
    q_values = [candidate["q_value"] for candidate in answer["candidates"]]
    assert q_values == [0.5, 0.25, 0.75]
    assert (answer["chosen"], answer["reason"]) == (2, "highest_q")
    assert answer["action"].endswith("Action: go to desk 1")
    assert answer["candidates"][2]["message"] == {"role": "assistant", "content": answer["action"]}


def test_one_candidate_is_no_choice(client: TestClient) -> None:
    answer = act(client, num_candidates=1)
    assert (answer["chosen"], answer["reason"]) == (0, "only_candidate")
    assert answer["candidates"][0]["q_value"] is None
    assert answer["usage"]["scored_tokens"] == 0
    assert answer["guided"] is False
    assert answer["unguided_reason"].startswith("one candidate was drawn")


def test_every_stage_says_what_it_cost(client: TestClient) -> None:
    answer = act(client, num_candidates=2)
    prompt_words = len(TASK[0]["content"].split())
    completion_words = sum(len(c["message"]["content"].split()) for c in answer["candidates"])
    assert answer["usage"] == {
        "prompt_tokens": prompt_words,
        "completion_tokens": completion_words,
        "scored_tokens": prompt_words + completion_words,
        "cached_tokens": 0,
        "paraphrase_tokens": 0,
        "threshold_tokens": 0,
        "cached_prompt_tokens": 0,
    }
    timings = answer["timings_ms"]
    assert timings["total"] >= timings["sample"] + timings["score"] > 0


def test_a_request_names_its_models(client: TestClient) -> None:
    assert act(client)["q_model"] == "demo"
    answer = act(client, policy="scripted", q_model="other")
    assert (answer["policy"], answer["q_model"]) == ("scripted", "other")


def test_real_models_draw_the_same_for_the_same_seed(tiny_client: TestClient) -> None:
    body = {"num_candidates": 4, "temperature": 1.0, "max_tokens": 6}
    first, again, other = (act(tiny_client, seed=seed, **body) for seed in (7, 7, 8))
    assert first["candidates"] == again["candidates"]
    assert first["candidates"][1:] != other["candidates"][1:]
    q_values = [candidate["q_value"] for candidate in first["candidates"]]
    assert q_values[first["chosen"]] == max(q_values)


def test_the_next_step_finds_its_history_in_the_cache(tiny_client: TestClient) -> None:
    first = act(tiny_client, num_candidates=2, max_tokens=4, seed=1)
    then = act(tiny_client, num_candidates=2, max_tokens=4, seed=1, messages=TWO_STEPS)
    assert first["usage"]["cached_tokens"] == 0
    assert then["usage"]["cached_tokens"] >= first["usage"]["prompt_tokens"]
    assert then["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"]


def test_the_first_candidate_is_the_greedy_one_unless_told_otherwise(tiny_client: TestClient) -> None:
    greedy = act(tiny_client, num_candidates=1, temperature=0, max_tokens=5)["action"]
    hot = {"num_candidates": 2, "temperature": 5.0, "max_tokens": 5, "seed": 3}
    assert act(tiny_client, **hot)["candidates"][0]["message"]["content"] == greedy
    free = act(tiny_client, **hot, greedy_candidate=False)
    assert free["candidates"][0]["message"]["content"] != greedy


@pytest.mark.parametrize("num_candidates", [-1, 0, 9])
def test_m_out_of_range_names_the_range(client: TestClient, num_candidates: int) -> None:
    response = client.post("/v1/act", json={"messages": TASK, "num_candidates": num_candidates})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "invalid_candidates"
    assert f"num_candidates is {num_candidates}; ask for 1 to 8" in error["message"]
