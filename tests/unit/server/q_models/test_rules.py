"""Rules served as Q models, alone and before another."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.qnet.errors import ConfigError
from qguide.server.q_models.build import build_models
from qguide.server.settings.settings import SCRIPTED
from qguide.server.settings.thresholds import ThresholdSettings
from tests.unit.server.conftest import FAKES, Serve

TASK = [{"role": "user", "content": "book a table"}]
TOOL = {
    "type": "function",
    "function": {"name": "book", "parameters": {"type": "object", "properties": {"people": {"type": "integer"}}}},
}
RULES = {"votes": "votes", "checked": "validity+votes", "guarded": f"validity+{SCRIPTED}", "likely": "likelihood"}


@pytest.fixture
def rules(serve: Serve) -> TestClient:
    return serve(FAKES.model_copy(update={"q_models": RULES}))


def call(arguments: str) -> dict[str, Any]:
    function = {"name": "book", "arguments": arguments}
    calls = [{"id": "c", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def score(client: TestClient, q_model: str, **body: Any) -> Any:
    return client.post("/v1/score", json={"messages": TASK, "q_model": q_model} | body)


def test_votes_choose_by_counts(rules: TestClient) -> None:
    answer = score(rules, "votes", candidates=["a", "b"], counts=[1, 3]).json()
    assert [one["q_value"] for one in answer["scores"]] == [0.25, 0.75]
    assert (answer["chosen"], answer["reason"]) == (1, "highest_q")


def test_an_invalid_call_loses_however_often_it_was_drawn(rules: TestClient) -> None:
    candidates = [call('{"people": 2}'), call('{"people": "two"}')]
    body = {"candidates": candidates, "counts": [1, 3], "tools": [TOOL]}
    answer = score(rules, "checked", **body).json()
    assert (answer["chosen"], answer["reason"]) == (0, "rules")
    assert score(rules, "checked", **(body | {"tools": []})).json()["chosen"] == 1


def test_a_rule_before_a_q_model_leaves_its_q(rules: TestClient) -> None:
    answer = score(rules, "guarded", candidates=["Action: look", "Action: put it"]).json()
    assert [one["q_value"] for one in answer["scores"]] == [0.5, 0.95]
    assert (answer["chosen"], answer["q_model"]) == (1, "guarded")


def test_a_likelihood_that_is_unknown_is_refused(rules: TestClient) -> None:
    answer = score(rules, "likely", candidates=["a", "b"])
    assert answer.status_code == 503
    assert "no log-likelihood" in answer.json()["error"]["message"]
    known = score(rules, "likely", candidates=["a", "b"], logprobs=[-1, -2]).json()
    assert known["chosen"] == 0


def test_votes_guide_what_is_drawn(rules: TestClient) -> None:
    body = {"messages": TASK, "num_candidates": 4, "q_model": "votes"}
    answer = rules.post("/v1/act", json=body).raise_for_status().json()
    assert [one["q_value"] for one in answer["candidates"]] == [0.5, 0.25, 0.25, 0.5]
    assert (answer["chosen"], answer["reason"], answer["guided"]) == (0, "highest_q", True)
    alone = rules.post("/v1/act", json=body | {"num_candidates": 3}).json()
    assert (alone["chosen"], alone["reason"], alone["guided"]) == (0, "likeliest", False)


def test_rules_compare_no_steps(rules: TestClient) -> None:
    body = {"messages": TASK, "q_model": "votes", "adaptive": True, "previous_q": 0.1}
    refused = rules.post("/v1/act", json=body)
    assert refused.status_code == 400
    assert "a rule that ranks" in refused.json()["error"]["message"]
    threshold = ThresholdSettings(below=0.5, actions=("refine",))
    with pytest.raises(ConfigError, match=r"QGUIDE_THRESHOLDS .*'votes', .*rule"):
        build_models(FAKES.model_copy(update={"q_models": RULES, "thresholds": {"votes": threshold}}))


def test_a_rule_is_listed_as_such(rules: TestClient) -> None:
    cards = rules.get("/v1/models").json()["q_models"]
    sources = {card["name"]: card["source"] for card in cards}
    assert sources == {"votes": "rules", "checked": "rules", "guarded": SCRIPTED, "likely": "rules"}
