"""A judge as a Q model of the server: named as a judge, counted, limited and told when it fails."""

import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.qnet.errors import ConfigError
from qguide.qnet.judging.settings import JudgeSettings
from qguide.qnet.records import OfferRow
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.http.keys import create_key
from qguide.server.q_models.build import build_models
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import SCRIPTED, Settings
from qguide.server.settings.thresholds import ThresholdSettings
from tests.unit.server.conftest import Serve

Address = tuple[FakeUpstream, str]
TASK = {"role": "user", "content": "take the green book"}
SAID = ["Action: take desk", "Action: take green book", "Action: sing"]
SHADOWS = "qguide_shadow_requests_total"
OUTCOMES = ("agreed", "disagreed", "failed")
VALUES = [0.5, 1.0, 0.0]
ACT = {"messages": [TASK], "num_candidates": 3, "greedy_candidate": False}


def settings_of(url: str, judge: dict[str, Any] | None = None, **more: Any) -> Settings:
    upstream = Upstream.model_validate({"url": url, "model": "fake-1", "retries": 0})
    fields: dict[str, Any] = {
        "policy": "demo",
        "upstreams": {"demo": upstream},
        "q_models": {"q": "judge:demo"},
        "judges": {} if judge is None else {"q": JudgeSettings.model_validate(judge)},
    }
    return Settings(**fields | more)


def metric(client: TestClient, name: str, **labels: str) -> float:
    """Sum of the series of a metric with these labels."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    lines = client.get("/metrics").text.splitlines()
    found = [line for line in lines if line.startswith(name) and all(w in line for w in wanted)]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def score(client: TestClient, said: list[str] = SAID) -> dict[str, Any]:
    body = {"messages": [TASK], "candidates": said}
    answer: dict[str, Any] = client.post("/v1/score", json=body).raise_for_status().json()
    return answer


def test_it_chooses_the_action_and_is_named_a_judge_everywhere(
    serve: Serve, address: Address, upstream: FakeUpstream, tmp_path: Path
) -> None:
    upstream.replies = SAID
    client = serve(settings_of(address[1], episodes_dir=tmp_path))
    answer = client.post("/v1/act", json=ACT | {"episode_id": "e"}).raise_for_status().json()
    assert answer["action"] == SAID[1]
    assert [c["q_value"] for c in answer["candidates"]] == pytest.approx(VALUES)
    assert answer["judge"] is True
    assert answer["q_model_version"].startswith("judge-")
    [card] = client.get("/v1/models").json()["q_models"]
    assert card["id"] == f"q@{answer['q_model_version']}"
    assert (card["source"], card["judge"]) == ("judge", {"model": "fake-1", "mode": "score"})
    client.post("/v1/episodes/e/outcome", json={"reward": 1}).raise_for_status()
    [file] = tmp_path.glob("offers-*.jsonl")
    row = OfferRow.model_validate_json(file.read_text())
    assert (row.judge, row.q_model) == (True, card["id"])
    assert metric(client, "qguide_judge_calls_total", q_model=card["id"], outcome="answered") == 3


def test_its_tokens_are_in_the_usage_and_in_the_metrics(serve: Serve, address: Address, upstream: FakeUpstream) -> None:
    client = serve(settings_of(address[1]))
    first, again = score(client)["usage"], score(client)["usage"]
    judge = first["judge"]
    assert (judge["calls"], judge["cached_calls"], judge["completion_tokens"]) == (3, 0, 3)
    tokens = judge["prompt_tokens"] + judge["completion_tokens"]
    assert (first["scored_tokens"], first["cached_tokens"]) == (tokens, 0)
    assert (again["scored_tokens"], again["cached_tokens"]) == (0, tokens)
    assert (again["judge"]["calls"], again["judge"]["cached_calls"]) == (0, 3)
    assert metric(client, "qguide_judge_tokens_total", kind="prompt") == judge["prompt_tokens"]
    assert metric(client, "qguide_scorer_tokens_total", kind="computed") == tokens
    assert metric(client, "qguide_judge_calls_total", outcome="cached") == 3


def test_a_chat_completion_names_it_too(serve: Serve, address: Address, upstream: FakeUpstream) -> None:
    upstream.replies = SAID
    client = serve(settings_of(address[1]))
    body = {"messages": [TASK], "qguide": {"num_candidates": 3}}
    answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
    assert answer["choices"][0]["message"]["content"] == SAID[1]
    assert answer["qguide"]["judge"] is True
    assert answer["qguide"]["usage"]["score"]["judge"]["calls"] == 3


def test_a_trained_q_model_is_no_judge(client: TestClient) -> None:
    answer = client.post("/v1/act", json=ACT).raise_for_status().json()
    assert answer["judge"] is False
    assert "judge" not in answer["usage"]


def test_an_unreadable_answer_is_a_502_or_the_first_candidate(
    serve: Serve, address: Address, upstream: FakeUpstream
) -> None:
    client = serve(settings_of(address[1]))
    upstream.fault = "chatty"
    failed = client.post("/v1/act", json=ACT | {"fallback": "error"})
    assert (failed.status_code, failed.json()["error"]["code"]) == (502, "judge_unreadable")
    assert "does not end in one number" in failed.json()["error"]["message"]
    assert "I should" not in failed.text, "it may quote the operator's prompt"
    taken = client.post("/v1/act", json=ACT).raise_for_status().json()
    assert (taken["guided"], taken["chosen"]) == (False, 0)
    assert "does not end in one number" in taken["unguided_reason"]
    assert all(candidate["q_value"] is None for candidate in taken["candidates"])


def test_one_score_for_all_candidates_leaves_the_choice_to_the_votes(
    serve: Serve, address: Address, upstream: FakeUpstream
) -> None:
    body = {"messages": [TASK], "candidates": ["Action: dance", "Action: sing"], "counts": [1, 2]}
    answer = serve(settings_of(address[1])).post("/v1/score", json=body).raise_for_status().json()
    assert len({one["q_value"] for one in answer["scores"]}) == 1
    assert (answer["chosen"], answer["reason"]) == (1, "likeliest")


def test_a_spent_budget_is_a_503_that_says_when_to_come_back(
    serve: Serve, address: Address, upstream: FakeUpstream
) -> None:
    client = serve(settings_of(address[1], {"calls_per_hour": 3}))
    score(client)
    body = {"messages": [TASK], "candidates": ["Action: dance"]}
    refused = client.post("/v1/score", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "judge_budget")
    assert int(refused.headers["Retry-After"]) > 3000
    assert score(client)["usage"]["judge"]["cached_calls"] == 3, "what is known costs nothing"


def test_a_key_that_has_used_up_the_judges_hour_leaves_another_its_own(
    serve: Serve, address: Address, upstream: FakeUpstream, tmp_path: Path
) -> None:
    keys = {name: create_key(tmp_path / "keys.json", name) for name in ("eve", "ada")}
    limits = {"calls_per_hour": 3, "total_calls_per_hour": 100}
    client = serve(settings_of(address[1], limits, keys_file=tmp_path / "keys.json"))

    def ask(key: str, *said: str) -> Any:
        body = {"messages": [TASK], "candidates": said}
        return client.post("/v1/score", json=body, headers={"X-API-Key": keys[key]})

    assert ask("eve", *SAID).status_code == 200
    refused = ask("eve", "Action: dance")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "judge_budget")
    assert "calls_per_hour of 3 for key eve" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) > 3000
    assert ask("ada", *SAID).status_code == 200


def test_a_budget_that_does_not_come_back_names_no_time(serve: Serve, address: Address, upstream: FakeUpstream) -> None:
    client = serve(settings_of(address[1], {"total_calls": 2}))
    refused = client.post("/v1/act", json=ACT | {"fallback": "error"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "judge_budget")
    assert "Retry-After" not in refused.headers


@pytest.mark.parametrize(("fault", "status", "code"), [("policy", 502, "judge_refused"), ("429", 503, "judge_busy")])
def test_a_refusal_of_the_judges_upstream_is_not_the_callers(
    serve: Serve, address: Address, upstream: FakeUpstream, fault: Any, status: int, code: str
) -> None:
    client = serve(settings_of(address[1]))
    upstream.fault, upstream.faults_after = fault, 1
    chat = {"messages": [TASK], "qguide": {"num_candidates": 3, "fallback": "error"}}
    failed = client.post("/v1/chat/completions", json=chat)
    error = failed.json()["error"]
    assert (failed.status_code, error["code"], error["param"]) == (status, code, None)
    assert failed.headers.get("Retry-After") == ("1" if status == 503 else None)


def test_a_ranking_judge_refuses_what_compares_steps(serve: Serve, address: Address, upstream: FakeUpstream) -> None:
    client = serve(settings_of(address[1], {"mode": "rank"}))
    assert [s["q_value"] for s in score(client)["scores"]] == [0.5, 1.0, 0.0]
    refused = client.post("/v1/act", json=ACT | {"adaptive": True, "previous_q": 0.2})
    assert refused.status_code == 400
    assert "a judge that ranks" in refused.json()["error"]["message"]


def test_scores_are_cached_for_replicas_by_model_and_prompt(
    serve: Serve, address: Address, upstream: FakeUpstream
) -> None:
    client = serve(settings_of(address[1], {"cached_answers": 0}, score_cache_ttl_s=60.0))
    first, again = score(client), score(client)
    assert first["scores"] == again["scores"]
    assert again["usage"]["scored_tokens"] == 0
    assert (again["usage"]["judge"]["calls"], again["usage"]["judge"]["cached_calls"]) == (0, 3)
    assert len(upstream.asked) == 3


def test_a_shadow_judge_is_asked_and_answers_nothing(serve: Serve, address: Address, upstream: FakeUpstream) -> None:
    q_models = {"live": SCRIPTED, "q": "judge:demo"}
    client = serve(settings_of(address[1], q_models=q_models, shadows={"live": "q"}))
    answer = score(client)
    assert (answer["judge"], answer["q_model"]) == (False, "live")
    deadline = time.monotonic() + 60
    while sum(metric(client, SHADOWS, outcome=o) for o in OUTCOMES) < 1:
        assert time.monotonic() < deadline, "the shadow has not scored"
    assert metric(client, SHADOWS, outcome="failed") == 0
    assert len(upstream.asked) == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"q_models": {"q": "judge:none"}}, "'judge:none', .* demo: .* QGUIDE_UPSTREAMS .* --upstream"),
        ({"q_models": {"q@v1": "judge:demo"}}, "q@v1 .* QGUIDE_Q_MODELS .*'judge-'"),
        ({"q_models": {"q": SCRIPTED}, "judges": {"q": JudgeSettings()}}, "QGUIDE_JUDGES .*'q', .* QGUIDE_Q_MODELS"),
        ({"judges": {"q": JudgeSettings(prompt_file=Path("no.txt"))}}, r"prompt_file no\.txt .*FileNotFoundError"),
    ],
)
def test_a_judge_that_cannot_be_built_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        build_models(settings_of("http://127.0.0.1:1/v1", **change))


def test_it_is_found_by_the_name_of_its_model(serve: Serve, address: Address, upstream: FakeUpstream) -> None:
    client = serve(settings_of(address[1], q_models={"q": "judge:fake-1"}))
    assert [s["q_value"] for s in score(client)["scores"]] == pytest.approx(VALUES)


RUBRIC = {"criteria": {"progress": "nearer to the goal", "safety": "harms nothing"}}


def test_verdicts_and_reasons_are_in_answers_and_in_the_recorded_offers(
    serve: Serve, address: Address, upstream: FakeUpstream, tmp_path: Path
) -> None:
    upstream.replies = SAID
    client = serve(settings_of(address[1], RUBRIC, episodes_dir=tmp_path))
    answer = client.post("/v1/act", json=ACT | {"episode_id": "e"}).raise_for_status().json()
    best = answer["candidates"][answer["chosen"]]
    assert (best["verdicts"], best["q_value"]) == ({"progress": 9, "safety": 9}, 1.0)
    assert best["judge_reason"] == "100% of its words are the task's"
    assert score(client)["scores"][1]["judge_reason"] == best["judge_reason"]
    chat = {"messages": [TASK], "model": "demo", "qguide": {"return_candidates": True}}
    said = client.post("/v1/chat/completions", json=chat | {"n": 1}).raise_for_status().json()
    assert all("verdicts" in one for one in said["qguide"]["candidates"] if one["q_value"])
    client.post("/v1/episodes/e/outcome", json={"reward": 1}).raise_for_status()
    [file] = tmp_path.glob("offers-*.jsonl")
    row = OfferRow.model_validate_json(file.read_text())
    [chosen] = [one for one in row.candidates if one.content == row.chosen]
    assert chosen.verdicts == {"progress": 9.0, "safety": 9.0}
    assert chosen.judge_reason == best["judge_reason"]


def test_without_criteria_no_answer_has_verdicts(serve: Serve, address: Address) -> None:
    assert "verdicts" not in score(serve(settings_of(address[1])))["scores"][0]


def test_verdicts_are_cached_for_replicas(serve: Serve, address: Address, upstream: FakeUpstream) -> None:
    judge = RUBRIC | {"cached_answers": 0}
    client = serve(settings_of(address[1], judge, score_cache_ttl_s=60.0))
    first, again = score(client), score(client)
    assert first["scores"] == again["scores"]
    assert first["scores"][0]["verdicts"] == {"progress": 4, "safety": 4}
    assert len(upstream.asked) == 3


def test_a_refined_step_shows_the_policy_the_judges_reasons(
    serve: Serve, address: Address, upstream: FakeUpstream
) -> None:
    upstream.replies = ["Action: sing", "Action: take desk"]
    threshold = ThresholdSettings.model_validate({"below": 0.9, "actions": ["refine"]})
    client = serve(settings_of(address[1], RUBRIC, thresholds={"q": threshold}))
    client.post("/v1/act", json=ACT | {"num_candidates": 2}).raise_for_status()
    last = [body["messages"][-1]["content"] for body in upstream.asked]
    [noted] = [text for text in last if text.endswith("Answer in the same form as before.")]
    for proposal, share in (("sing", 0), ("take desk", 50)):
        said = f"{share}% of its words are the task's"
        assert f'- "Action: {proposal}"; the reason: "{said}"' in noted
