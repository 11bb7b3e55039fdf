"""Cost of a step by the operator's prices, stage by stage."""

import re
from typing import Any

import pytest

from qguide.qnet.work import Prices
from qguide.server.settings.settings import Settings
from qguide.server.settings.thresholds import ThresholdSettings
from tests.support.dialect_upstream import DialectUpstream
from tests.unit.server.conftest import Serve, settings_of

PRICES = Prices(prompt=2, completion=10, cached_prompt=0.5, written_prompt=2.5)
ASKED = {
    "messages": [{"role": "system", "content": "one two three"}, {"role": "user", "content": "find the mug"}],
    "max_tokens": 9,
}
MILLION = 1e6


def priced(url: str, **more: Any) -> Settings:
    settings = settings_of(url)
    demo = settings.upstreams["demo"].model_copy(update={"prices": PRICES} | more)
    return settings.model_copy(update={"upstreams": {"demo": demo}})


def test_drawing_costs_what_the_prices_say(serve: Serve, address: Any) -> None:
    client = serve(priced(address[1]))
    told = client.post("/v1/act", json=ASKED | {"num_candidates": 1}).json()
    usage, cost = told["usage"], told["cost"]
    assert (usage["prompt_tokens"], usage["cached_prompt_tokens"]) == (6, 3)
    sample = (3 * 2 + 3 * 0.5 + usage["completion_tokens"] * 10) / MILLION
    assert cost["sample"] == pytest.approx(sample)
    assert cost["cached"] == pytest.approx(1.5 / MILLION)
    assert (cost["score"], cost["written"]) == (None, 0)
    assert cost["total"] == cost["sample"]
    chat = client.post("/v1/chat/completions", json=ASKED).json()["qguide"]
    assert chat["cost"]["sample"] > cost["sample"]


def test_what_is_written_to_the_cache_costs_its_own_price(serve: Serve, address: Any) -> None:
    client = serve(priced(address[1], dialect="messages"))
    body = ASKED | {"qguide": {"num_candidates": 1}, "messages": [ASKED["messages"][1]]}  # type: ignore[index]
    told = client.post("/v1/messages", json=body | {"system": "one two three"}).json()
    usage, cost = told["usage"], told["qguide"]["cost"]
    assert usage["cache_creation_input_tokens"] == 1
    assert cost["written"] == pytest.approx(2.5 / MILLION)
    sample = (2 * 2 + 3 * 0.5 + 2.5 + usage["output_tokens"] * 10) / MILLION
    assert cost["sample"] == pytest.approx(sample)


def test_a_judge_costs_its_own_upstreams_prices(
    serve: Serve, address: tuple[DialectUpstream, str], upstream: DialectUpstream
) -> None:
    settings = settings_of(address[1])
    judging = settings.upstreams["demo"].model_copy(update={"prices": PRICES})
    upstreams = {"demo": settings.upstreams["demo"], "judging": judging}
    changes = {"upstreams": upstreams, "q_models": {"q": "judge:judging"}}
    client = serve(settings.model_copy(update=changes))
    told = client.post("/v1/act", json=ASKED | {"num_candidates": 3}).json()
    judge, cost = told["usage"]["judge"], told["cost"]
    score = (judge["prompt_tokens"] * 2 + judge["completion_tokens"] * 10) / MILLION
    assert cost["score"] == cost["total"] == pytest.approx(score)
    assert cost["sample"] is None


def test_without_prices_nothing_is_told(serve: Serve, address: Any) -> None:
    client = serve(settings_of(address[1]))
    assert "cost" not in client.post("/v1/act", json=ASKED).json()
    assert "cost" not in client.post("/v1/chat/completions", json=ASKED).json()["qguide"]


STRONG = Prices(prompt=20, completion=100)
JUDGE = Prices(prompt=0.5, completion=4)


def test_each_action_below_a_threshold_tells_what_its_draws_and_the_judge_cost(serve: Serve, address: Any) -> None:
    settings = settings_of(address[1])
    plain = settings.upstreams["demo"]
    prices = {"demo": PRICES, "strong": STRONG, "judging": JUDGE}
    below = {"below": 1.0, "actions": ["refine", "escalate"], "policy": "strong"}
    changes = {
        "upstreams": {name: plain.model_copy(update={"prices": of, "model": name}) for name, of in prices.items()},
        "q_models": {"q": "judge:judging"},
        "thresholds": {"q": ThresholdSettings.model_validate(below)},
    }
    client = serve(settings.model_copy(update=changes))
    task = {"role": "user", "content": "find the mug"}
    body = {"messages": [task], "num_candidates": 2, "greedy_candidate": False}
    told = client.post("/v1/act", json=body).json()
    refine, escalate = (action["cost"] for action in told["threshold"]["actions"])
    # Words, by the script: the task has 3, the replies 8, 9 and 14; refine's note is read, too.
    noted, questions = _read(address[0], "demo")[1], _read(address[0], "judging")
    drawn, refined, escalated = 3 * 2 + 17 * 10, noted * 2 + 14 * 10, 3 * 20 + 8 * 100
    judged = [(read * 0.5 + 1 * 4) / MILLION for read in questions]
    assert refine["sample"] == pytest.approx(refined / MILLION)
    assert refine["score"] == pytest.approx(judged[2])
    assert refine["total"] == pytest.approx(refined / MILLION + judged[2])
    assert escalate["total"] == escalate["sample"] == pytest.approx(escalated / MILLION)
    assert escalate["score"] is None, "the judge knows what was drawn again"
    assert told["cost"]["sample"] == pytest.approx((drawn + refined + escalated) / MILLION)
    assert told["cost"]["score"] == pytest.approx(sum(judged))
    stages = {"sample": drawn / MILLION, "score": sum(judged[:2])}
    stages |= {"refine": refine["total"], "escalate": escalate["total"]}
    counted = client.get("/metrics").text
    for stage, cost in stages.items():
        [told_cost] = re.findall(rf'qguide_cost_total{{.*stage="{stage}"}} (\S+)', counted)
        assert float(told_cost) == pytest.approx(cost)


def _read(upstream: DialectUpstream, model: str) -> list[int]:
    """Words of each prompt that a model was sent."""
    return [
        sum(len(message["content"].split()) for message in body["messages"])
        for body in upstream.asked
        if body["model"] == model
    ]
