"""States of another kind than the Q model was trained on: the policy alone answers."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.qnet.records import OfferRow
from qguide.server.settings.settings import SCRIPTED, Settings
from qguide.training.data.runs import read_rows
from qguide.training.jobs.learn import LearnConfig, run_learn
from tests.unit.server.conftest import Serve
from tests.unit.training.jobs.test_learn import recording

INSIDE = [{"role": "user", "content": "Find the coin of guest 7."}]
OUTSIDE = [{"role": "user", "content": "Plan a weekend in Lisbon for two."}]
DRAWERS = ["Action: open the red drawer", "Action: open the blue drawer"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Q model that has learned where rings and coins are."""
    folder = tmp_path_factory.mktemp("learned")
    run_learn(LearnConfig(source=(recording(folder / "chats.jsonl"),), output=folder / "r", bits=12))
    return str(folder / "r" / "checkpoint")


@pytest.fixture
def start(serve: Serve, checkpoint: str) -> Any:
    """Starts a server with the Q model."""

    def started(**more: Any) -> TestClient:
        q_models = {"drawers": checkpoint, **more.pop("beside", {})}
        return serve(Settings(policy=SCRIPTED, q_models=q_models, **more))

    return started


def act(client: TestClient, messages: Any, **more: Any) -> dict[str, Any]:
    body = {"messages": messages, "num_candidates": 3, "greedy_candidate": False} | more
    answer: dict[str, Any] = client.post("/v1/act", json=body).raise_for_status().json()
    return answer


def score(client: TestClient, messages: Any, **more: Any) -> dict[str, Any]:
    body = {"messages": messages, "candidates": DRAWERS} | more
    answer: dict[str, Any] = client.post("/v1/score", json=body).raise_for_status().json()
    return answer


def scored(answer: dict[str, Any]) -> bool:
    """True if Q judged the candidates; of words that it does not know all have the same."""
    q_values = [candidate["q_value"] for candidate in answer["candidates"]]
    return None not in q_values and "outside" not in (answer["unguided_reason"] or "")


def test_candidates_in_a_state_of_its_kind_are_scored(start: Any) -> None:
    assert scored(act(start(), INSIDE))


def test_a_foreign_task_is_answered_by_the_policy_alone_and_says_why(start: Any) -> None:
    client = start()

    answer = act(client, OUTSIDE)

    assert (answer["guided"], answer["reason"]) == (False, "fallback")
    assert answer["unguided_reason"].startswith("outside what this Q model was trained on")
    assert [candidate["q_value"] for candidate in answer["candidates"]] == [None] * 3
    assert 'qguide_out_of_domain_total{q_model="drawers@' in client.get("/metrics").text


def test_answers_tell_the_distance_where_it_was_measured(start: Any) -> None:
    client = start()
    for ask in (act, score):
        assert 0 <= ask(client, INSIDE)["domain_distance"] <= 1
        assert ask(client, OUTSIDE)["domain_distance"] > 1
        assert "domain_distance" not in ask(client, OUTSIDE, out_of_domain="guide"), "nobody asked"


def test_such_a_step_is_answered_even_where_a_missing_q_is_an_error(start: Any) -> None:
    assert act(start(fallback="error"), OUTSIDE, fallback="error")["guided"] is False


def test_a_request_may_insist(start: Any) -> None:
    assert scored(act(start(), OUTSIDE, out_of_domain="guide"))


def test_the_operator_may_insist(start: Any) -> None:
    assert scored(act(start(out_of_domain="guide"), OUTSIDE))


def test_candidates_of_a_foreign_task_are_scored_and_the_likeliest_is_chosen(start: Any) -> None:
    client = start()
    inside = score(client, INSIDE, selection="argmax")
    outside = score(client, OUTSIDE, counts=[1, 3])

    assert inside["chosen"] == 1
    assert "unguided_reason" not in inside
    assert (outside["chosen"], outside["reason"]) == (1, "fallback")
    assert "Lisbon" not in outside["unguided_reason"]
    assert all(one["q_value"] is not None for one in outside["scores"])


def test_a_verifier_has_no_confidence_in_the_answer_to_a_foreign_question(start: Any) -> None:
    client = start()
    for messages, outside in ((INSIDE, False), (OUTSIDE, True)):
        body = {"question": messages[0]["content"], "answer": DRAWERS[1], "threshold": 0.01}
        told = client.post("/verify", json=body).raise_for_status().json()
        assert (told["out_of_domain"], told["should_escalate"]) == (outside, outside)
        assert (told["confidence"] == 0) is outside


def test_the_record_says_which_steps_were_outside_and_which_reply_was_greedy(start: Any, tmp_path: Path) -> None:
    client = start(episodes_dir=tmp_path, beside={"demo": SCRIPTED}, shadows={"drawers": "demo"})
    asked = {"greedy_candidate": True, "temperature": 0.7}
    for episode, messages in (("in", INSIDE), ("out", OUTSIDE)):
        act(client, messages, episode_id=episode, **asked)
        score(client, messages, episode_id=f"{episode}-score", counts=[1, 1])
        for one in (episode, f"{episode}-score"):
            client.post(f"/v1/episodes/{one}/outcome", json={"reward": 1}).raise_for_status()

    (file,) = tmp_path.glob("offers-*.jsonl")
    offers = list(read_rows(file, OfferRow))
    assert [offer.out_of_domain for offer in offers] == [False, False, True, True]
    assert {(offer.shadow or "").partition("@")[0] for offer in offers} == {"demo"}
    assert [c.greedy for c in offers[0].candidates][:2] == [True, False]
    assert {c.greedy for c in offers[1].candidates} == {None}
