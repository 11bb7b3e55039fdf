"""Cost of a step by the operator's prices, stage by stage."""

from typing import Any

import pytest

from qguide.qnet.usage import Prices
from qguide.server.settings.settings import Settings
from tests.support.dialect_upstream import DialectUpstream
from tests.unit.server.conftest import Serve, settings_of

PRICES = Prices(prompt=2, completion=10, cached_prompt=0.5, written_prompt=2.5)
ASKED = {
    "messages": [
        {"role": "system", "content": "one two three"},
        {"role": "user", "content": "find the mug"},
    ],
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
