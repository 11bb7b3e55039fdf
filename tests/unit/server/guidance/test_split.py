"""Policies without an n: their draws are split by the outcomes of the caller's own episodes."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import pytest
from fastapi.testclient import TestClient

from benchmarks.learning.simulation import SPLITS, regret_of_split
from qguide.qnet.policies.pool import MOST_EVIDENCE, PolicyPool, PolicyRecord, split_draws
from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.qnet.types import Sampling
from qguide.qnet.work import Prices
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.guidance.step_types import GuidedStepRequest, prices_of
from qguide.server.http.keys import create_key
from qguide.server.own_bodies.schemas import PolicyShare, StepOptions
from qguide.server.q_models.served import ServedPolicy
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import Settings
from tests.support.serving import serving_app
from tests.unit.server.conftest import FAKES, Serve

NAMES = ("good", "bad")


def test_what_is_known_decides_and_what_is_not_known_is_tried() -> None:
    known = {"a": PolicyRecord(90, 10), "b": PolicyRecord(10, 90)}
    rng = Random(0)
    assert split_draws(("a", "b"), 50, known=known, rng=rng) == {"a": 50}
    tried = split_draws(("a", "c"), 1_000, known=known, rng=rng)
    assert 50 < tried["c"] < 200  # a mean drawn from the uniform prior is above .9 once in ten
    even = split_draws(("a", "b"), 1_000, known={}, rng=rng)
    assert 400 < even["a"] < 600


def test_a_record_forgets_so_that_a_policy_that_has_changed_is_seen() -> None:
    record = PolicyRecord()
    for _ in range(5_000):
        record = record.plus(1.0, 1.0)
    assert record.gained + record.lost == pytest.approx(MOST_EVIDENCE)
    for _ in range(500):
        record = record.plus(0.0, 1.0)
    assert record.mean < 0.5


def test_half_of_an_episode_counts_as_half_an_outcome() -> None:
    record = PolicyRecord().plus(0.8, 0.5)
    assert (record.gained, record.lost) == pytest.approx((0.4, 0.1))


@pytest.mark.parametrize("rates", SPLITS[:3])
def test_the_bandit_loses_less_than_an_even_split(rates: dict[str, float]) -> None:
    def lost(*, bandit: bool) -> float:
        return fmean(regret_of_split(rates, seed=seed, bandit=bandit) for seed in range(20))

    assert lost(bandit=True) < 0.6 * lost(bandit=False)


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """A server that learns, in front of a good and a bad model."""
    good, bad = FakeUpstream(replies=["Action: right"]), FakeUpstream(replies=["Action: wrong"])
    with serving_app(good.app()) as one, serving_app(bad.app()) as other:
        upstreams = {
            name: Upstream.model_validate({"url": f"{url}/v1", "model": name})
            for name, url in zip(NAMES, (one, other), strict=True)
        }
        more: dict[str, Any] = {"upstreams": upstreams, "policy": "bad", "q_models": {}}
        yield FAKES.model_copy(update=more | {"episodes_dir": tmp_path, "learn": True})


def play(client: TestClient, number: int, key: str = "") -> list[str]:
    """One episode of one step; returns the policy of each candidate."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {
        "messages": [{"role": "user", "content": f"Guest {number} asks. Your task is to: answer."}],
        "policies": [{"name": name} for name in NAMES],
        "num_candidates": 3,
        "episode_id": f"e{number}",
    }
    answer = client.post("/v1/act", json=body, headers=headers).json()
    outcome = {"reward": float("right" in answer["action"])}
    ended = client.post(f"/v1/episodes/e{number}/outcome", json=outcome, headers=headers)
    assert ended.status_code == 200, ended.text
    return [one["policy"] for one in answer["candidates"]]


def known(client: TestClient, key: str = "") -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return client.get("/v1/learning", headers=headers).json()["policies"]


def test_the_policy_that_succeeds_draws_and_a_restart_forgets_nothing(serve: Serve, settings: Settings) -> None:
    client = serve(settings)
    for number in range(30):
        play(client, number)
    told = known(client)
    assert told["good"]["mean"] > 0.8 > 0.5 >= told.get("bad", {"mean": 0.5})["mean"]
    assert sum(one["episodes"] for one in told.values()) == 30
    again = serve(settings)
    assert known(again) == told
    drawn = [name for number in range(30, 50) for name in play(again, number)]
    assert drawn.count("good") > 0.7 * len(drawn)


def test_nothing_of_one_key_reaches_another(serve: Serve, settings: Settings, tmp_path: Path) -> None:
    ada, bob = (create_key(tmp_path / "keys.json", name) for name in ("ada", "bob"))
    client = serve(settings.model_copy(update={"keys_file": tmp_path / "keys.json"}))
    for number in range(3):
        play(client, number, ada)
    assert sum(one["episodes"] for one in known(client, ada).values()) == 3
    assert known(client, bob) == {}


def test_too_many_candidates_are_refused_before_they_are_split(serve: Serve, settings: Settings) -> None:
    body = {
        "messages": [{"role": "user", "content": "Your task is to: answer."}],
        "policies": [{"name": name} for name in NAMES],
    }
    for asked in (10**12, 0):
        refused = serve(settings).post("/v1/act", json=body | {"num_candidates": asked})
        assert refused.json()["error"]["code"] == "invalid_candidates"


def test_a_step_has_the_price_of_the_policies_that_draw_it(settings: Settings) -> None:
    cheap, dear = (Prices(prompt=price, completion=price) for price in (1.0, 50.0))
    upstreams = {
        name: settings.upstreams[name].model_copy(update={"prices": price})
        for name, price in (("good", cheap), ("bad", dear))
    }
    pool = PolicyPool([("good", ScriptedPolicy(["x"]), 3)])
    asked = GuidedStepRequest(
        policy=ServedPolicy(pool.name, pool, "upstream", pool=pool),
        history=(),
        sampling=Sampling(),
        num_candidates=3,
        options=StepOptions(policies=[PolicyShare(name=name) for name in NAMES]),
    )
    given = settings.model_copy(update={"upstreams": upstreams})
    assert prices_of(asked, None, given).own == cheap


def test_a_header_names_them(serve: Serve, settings: Settings) -> None:
    body = {"model": "default", "messages": [{"role": "user", "content": "Go."}]}
    headers = {"X-QGuide-Policies": "good, bad"}
    answer = serve(settings).post("/v1/chat/completions", json=body, headers=headers).json()
    assert {one["name"] for one in answer["qguide"]["policies"]} <= set(NAMES)
