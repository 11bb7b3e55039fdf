"""Metrics of the arms of a split and of the cost of paraphrases."""

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.server.settings.settings import SCRIPTED
from tests.unit.server.conftest import FAKES, Serve

TASK = {"role": "user", "content": "You see a desk. Your task is to: take the mug."}
ARMS = {"shop@a": SCRIPTED, "shop@b": SCRIPTED}
SPLIT = FAKES.model_copy(update={"q_models": ARMS, "aliases": {"trial": {"shop@a": 1.0, "shop@b": 1.0}}})


def told(client: TestClient, metric: str) -> dict[str, float]:
    """A metric's value by what stands in braces."""
    lines = re.findall(rf"^{metric}(?:\{{(.*)\}})? (\S+)$", client.get("/metrics").text, re.M)
    return {labels: float(value) for labels, value in lines}


def play(client: TestClient, episode: str, reward: float, **options: Any) -> str:
    """One step, and the end; returns the arm."""
    asked = {"messages": [TASK], "episode_id": episode} | options
    answer = client.post("/v1/act", json=asked).raise_for_status().json()
    end(client, episode, reward)
    return f"{answer['q_model']}@{answer['q_model_version']}"


def end(client: TestClient, episode: str, reward: float) -> None:
    client.post(f"/v1/episodes/{episode}/outcome", json={"reward": reward}).raise_for_status()


def test_episodes_and_their_rewards_are_counted_for_each_arm(serve: Serve) -> None:
    client = serve(SPLIT)
    counts, sums = dict.fromkeys(ARMS, 0), dict.fromkeys(ARMS, 0.0)
    for k in range(12):
        arm = play(client, f"e{k}", float(k), q_model="trial")
        counts[arm] += 1
        sums[arm] += k
    assert all(counts.values())
    assert told(client, "qguide_episodes_total") == {f'q_model="{a}"': n for a, n in counts.items()}
    rewards = told(client, "qguide_episode_reward_total")
    assert {a: rewards[f'q_model="{a}",sign="positive"'] for a in ARMS} == sums


def test_a_reward_below_0_is_counted_apart_because_counters_do_not_fall(serve: Serve) -> None:
    client = serve(SPLIT)
    play(client, "won", 1.5, q_model="shop@a")
    play(client, "lost", -2.0, q_model="shop@a")
    rewards = told(client, "qguide_episode_reward_total")
    assert rewards['q_model="shop@a",sign="positive"'] == 1.5
    assert rewards['q_model="shop@a",sign="negative"'] == 2.0


def test_an_outcome_that_is_told_twice_or_refused_counts_once(serve: Serve) -> None:
    client = serve(SPLIT)
    play(client, "e", 1.0, q_model="shop@a")
    end(client, "e", 1.0)
    refused = client.post("/v1/episodes/e/outcome", json={"reward": 0.0})
    unknown = client.post("/v1/episodes/nobody/outcome", json={"reward": 1.0})
    assert (refused.status_code, unknown.status_code) == (409, 404)
    assert told(client, "qguide_episodes_total")['q_model="shop@a"'] == 1


def test_every_arm_begins_at_0_so_that_a_rate_sees_its_first_episode(serve: Serve) -> None:
    client = serve(SPLIT)
    for metric in ("qguide_episodes_total", "qguide_unguided_total"):
        assert told(client, metric) == {f'q_model="{arm}"': 0.0 for arm in ARMS}
    actions = told(client, "qguide_threshold_actions_total")
    assert actions['action="stop",outcome="stopped",q_model="shop@a"'] == 0
    assert set(actions.values()) == {0.0}


@pytest.mark.parametrize("perturb", [True, False])
def test_tokens_of_paraphrases_are_told_apart(serve: Serve, perturb: bool) -> None:
    client = serve(FAKES.model_copy(update={"paraphraser": SCRIPTED}))
    asked = {"messages": [TASK], "num_candidates": 3, "perturb": perturb}
    usage = client.post("/v1/act", json=asked).raise_for_status().json()["usage"]
    assert bool(usage["paraphrase_tokens"]) is perturb
    paraphrases = told(client, "qguide_paraphrase_tokens_total")[""]
    assert paraphrases >= usage["paraphrase_tokens"]
    assert bool(paraphrases) is perturb
