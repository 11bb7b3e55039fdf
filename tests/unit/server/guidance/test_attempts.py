"""Attempts of one task, of which only the best by value go on."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from qguide.server.guidance.attempts import narrowed
from qguide.server.settings.settings import SCRIPTED, Settings
from qguide.training.jobs.learn import LearnConfig, run_learn
from tests.unit.server.conftest import FAKES, Serve

TASK = {"role": "user", "content": "Your task is to: take the mug."}
SAID = {"low": "Action: look", "high": "Action: go to desk 1", "wait": "Action: wait"}


def attempt(name: str, **more: Any) -> dict[str, Any]:
    messages = [TASK, {"role": "assistant", "content": SAID[name]}]
    return {"episode_id": name, "messages": messages, "tokens": 100} | more


def compared(client: TestClient, attempts: list[Any], **body: Any) -> Any:
    return client.post("/v1/attempts", json={"attempts": attempts} | body)


def test_the_half_with_the_highest_values_goes_on(client: TestClient) -> None:
    answer = compared(client, [attempt("low"), attempt("high")]).json()
    assert answer["go_on"] == ["high"]
    assert [(one["value"], one["verdict"]) for one in answer["attempts"]] == [(0.5, "behind"), (0.75, "best")]
    assert (answer["spent_tokens"], answer["left_tokens"], answer["q_model"]) == (200, None, "demo")
    assert 'qguide_attempts_total{q_model="demo@0",verdict="behind"} 1.0' in (client.get("/metrics").text)


def test_the_budget_pays_a_turn_of_each_that_goes_on(client: TestClient) -> None:
    running = [attempt("low"), attempt("high"), attempt("wait", running=False)]
    answer = compared(client, running, go_on=2, budget_tokens=450).json()
    assert [one["verdict"] for one in answer["attempts"]] == ["budget", "best", "ended"]
    assert (answer["spent_tokens"], answer["left_tokens"]) == (300, 150)
    spent = compared(client, running, go_on=2, budget_tokens=300).json()
    assert (spent["go_on"], spent["left_tokens"]) == ([], 0)


def test_what_the_server_knows_of_an_episode_need_not_be_sent(client: TestClient) -> None:
    for name, candidates in (("a", ["Action: look"]), ("b", ["Action: go to desk 1"])):
        body = {"messages": [TASK], "candidates": candidates, "episode_id": name}
        assert client.post("/v1/score", json=body).status_code == 200
    answer = compared(client, [{"episode_id": "a"}, {"episode_id": "b"}]).json()
    assert answer["go_on"] == ["b"]
    assert answer["usage"]["scored_tokens"] == 0
    client.post("/v1/episodes/b/outcome", json={"reward": 1})
    again = compared(client, [{"episode_id": "a"}, {"episode_id": "b"}]).json()
    assert [one["verdict"] for one in again["attempts"]] == ["best", "ended"]


def test_a_q_model_without_a_network_values_what_the_answers_led_to(serve: Serve, tmp_path: Path) -> None:
    """Ten of each outcome: the same action was answered with a coin, or with nothing."""
    tries = {"You see a coin.": 1.0, "It is empty.": 0.0}
    with (tmp_path / "chats.jsonl").open("w") as file:
        for number in range(20):
            seen = list(tries)[number % 2]
            said = ["Action: open the drawer", "Action: take what is there"]
            texts = [f"Fetch guest {number} a coin.", said[0], seen, said[1], "Done."]
            roles = ["user", "assistant", "user", "assistant", "user"]
            messages = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)]
            file.write(json.dumps({"messages": messages, "reward": tries[seen]}) + "\n")
    run_learn(LearnConfig(source=(tmp_path / "chats.jsonl",), output=tmp_path / "run", bits=12))
    learned = str(tmp_path / "run" / "checkpoint")
    models: Any = {"coins": learned, "ruled": f"validity+{learned}"}
    client = serve(Settings(policy=SCRIPTED, q_models=models, unlicensed=True))
    opened = [
        {"role": "user", "content": "Fetch guest 30 a coin."},
        {"role": "assistant", "content": "Action: open the drawer"},
    ]
    sent = [
        {"episode_id": name, "messages": [*opened, *({"role": "user", "content": seen} for seen in seens)]}
        for name, seens in (("empty", ["It is empty."]), ("coin", ["You see a coin."]), ("unread", []))
    ]
    values = {one["episode_id"]: one["value"] for one in compared(client, sent).json()["attempts"]}
    assert values["empty"] < values["unread"] < values["coin"]
    failed = {**sent[1], "messages": [*opened, {"role": "user", "content": "You see a coin. Error: it is stuck."}]}
    plain = compared(client, [failed, sent[0]]).json()
    ruled = compared(client, [failed, sent[0]], q_model="ruled").json()
    assert (plain["go_on"], ruled["go_on"]) == (["coin"], ["empty"])
    assert [one["valid"] for one in ruled["attempts"]] == [False, True]
    assert [one["value"] for one in ruled["attempts"]] == [one["value"] for one in plain["attempts"]]


def test_values_of_another_q_model_are_not_compared(client: TestClient) -> None:
    body = {"messages": [TASK], "candidates": ["Action: look"], "episode_id": "a"}
    client.post("/v1/score", json=body)
    answer = compared(client, [{"episode_id": "a"}, attempt("high")], q_model="other").json()
    assert answer["go_on"] == ["high"]
    assert answer["attempts"][0]["value"] is None
    assert answer["warnings"] == ["attempts[0]: its latest step has no Q by other@0; send its messages"]


@pytest.mark.parametrize(
    ("attempts", "said"),
    [
        ([], "attempts has 0 entries of 0 episodes"),
        ([attempt("low"), attempt("low")], "attempts has 2 entries of 1 episodes"),
        ([{"episode_id": "new"}], "attempts[0] has no messages, and its episode has no step"),
        ([attempt("low", messages=[TASK])], "attempts[0]: messages has no action"),
    ],
)
def test_what_cannot_be_compared_is_refused(client: TestClient, attempts: list[Any], said: str) -> None:
    answer = compared(client, attempts)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def test_a_rule_that_ranks_one_steps_candidates_compares_no_attempts(serve: Serve) -> None:
    ranks = {"demo": SCRIPTED, "votes": "votes"}
    client = serve(FAKES.model_copy(update={"q_models": ranks}))
    answer = compared(client, [attempt("low"), attempt("high")], q_model="votes")
    assert answer.status_code == 400
    assert "ranks the candidates of one step" in answer.json()["error"]["message"]


VALUES = st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=6)


@given(VALUES, st.integers(1, 6), st.lists(st.floats(0, 50), min_size=6, max_size=6), st.data())
def test_none_goes_on_before_one_of_a_higher_value(
    values: list[float | None], most: int, turns: list[float], data: st.DataObject
) -> None:
    left = data.draw(st.one_of(st.none(), st.floats(0, 200)))
    found = narrowed(dict(enumerate(values)), dict(enumerate(turns)), most=most, left=left)
    best = [index for index, verdict in found.items() if verdict == "best"]
    assert len(best) <= most
    assert left is None or sum(turns[index] for index in best) <= left + 1e-9
    behind = [index for index, verdict in found.items() if verdict == "behind"]
    for index in best:
        assert all((values[index] or 0) >= (values[other] or 0) for other in behind)
