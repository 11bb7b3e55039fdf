"""Steps whose best Q is below a threshold: refined, escalated or stopped, in every dialect."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.qnet.errors import ConfigError
from qguide.qnet.judging.settings import JudgeSettings
from qguide.qnet.records import OfferRow, TreeRow
from qguide.qnet.work import Prices
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.q_models.build import build_models
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import SCRIPTED, Settings
from qguide.server.settings.thresholds import ThresholdSettings
from tests.support.serving import serving_app
from tests.unit.server.conftest import Serve

Body = dict[str, Any]
Address = tuple[FakeUpstream, str]
TASK: Body = {"role": "user", "content": "Put the mug on the shelf."}
POOR = ["Action: look", "Action: inventory"]
GOOD = "Action: put mug on shelf"
Q = {"look": 0.5, "inventory": 0.25, "put": 0.95}
"""Q of the scripted Q model; see `DEMO_Q`."""
ACT: Body = {"messages": [TASK], "num_candidates": 2, "greedy_candidate": False}


@pytest.fixture
def strong() -> Iterator[Address]:
    """Another upstream, which draws the good action."""
    state = FakeUpstream(replies=[GOOD])
    with serving_app(state.app()) as url:
        yield state, f"{url}/v1"


def settings_of(url: str, threshold: Body, *, other: str = "", **more: Any) -> Settings:
    upstreams = {"demo": url} | ({"strong": other} if other else {})
    fields: Body = {
        "policy": "demo",
        "upstreams": {
            name: Upstream.model_validate({"url": at, "model": f"{name}-1", "retries": 0})
            for name, at in upstreams.items()
        },
        "q_models": {"q": SCRIPTED},
        "thresholds": {"q": ThresholdSettings.model_validate({"below": 0.6} | threshold)},
    }
    return Settings(**fields | more)


REFINE: Body = {"actions": ["refine"]}
ESCALATE: Body = {"actions": ["escalate"], "policy": "strong"}
STOP: Body = {"actions": ["stop"]}


@pytest.fixture
def weak(address: Address, upstream: FakeUpstream) -> str:
    """URL of an upstream that draws two poor actions, and the good one if it is asked again."""
    upstream.replies = [*POOR, GOOD]
    return address[1]


def act(client: TestClient, **more: Any) -> Body:
    response = client.post("/v1/act", json=ACT | more)
    assert response.status_code == 200, response.text
    answer: Body = response.json()
    return answer


def metric(client: TestClient, start: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))


def rows_in(folder: Path) -> tuple[list[OfferRow], list[TreeRow]]:
    offers = [line for file in folder.glob("offers-*.jsonl") for line in file.read_text().splitlines()]
    trees = [line for file in folder.glob("trees-*.jsonl") for line in file.read_text().splitlines()]
    return list(map(OfferRow.model_validate_json, offers)), list(map(TreeRow.model_validate_json, trees))


def test_a_refined_step_says_what_was_done_and_what_it_cost(serve: Serve, weak: str, upstream: FakeUpstream) -> None:
    client = serve(settings_of(weak, REFINE))
    answer = act(client)
    assert answer["action"] == GOOD
    assert [c["q_value"] for c in answer["candidates"]] == [0.5, 0.25, 0.95]
    threshold = answer["threshold"]
    assert (threshold["below"], threshold["best_q"]) == (0.6, 0.5)
    [taken] = threshold["actions"]
    assert (taken["action"], taken["outcome"], taken["policy"]) == ("refine", "raised", "demo")
    assert (taken["candidates"], taken["best_q"]) == ([2], 0.95)
    note = upstream.asked[-1]["messages"][-1]["content"]
    assert all(text in note for text in [TASK["content"], *POOR])
    tokens = taken["prompt_tokens"] + taken["completion_tokens"]
    assert answer["usage"]["threshold_tokens"] == tokens > 50
    read = sum(_words(body) for body in upstream.asked)
    assert answer["usage"]["prompt_tokens"] == read
    assert metric(client, "qguide_prompt_tokens_total") == read
    assert "refine (raised)" in answer["warnings"][0]
    series = 'qguide_threshold_actions_total{action="refine",outcome="raised",q_model="q@0"}'
    assert metric(client, series) == 1
    assert metric(client, "qguide_threshold_tokens_total{") == tokens


def _words(body: Body) -> int:
    return sum(len(message["content"].split()) for message in body["messages"])


def test_a_step_that_is_good_enough_is_left_alone(serve: Serve, weak: str, upstream: FakeUpstream) -> None:
    upstream.replies = [GOOD, *POOR]
    answer = act(serve(settings_of(weak, REFINE)))
    assert "threshold" not in answer
    assert (answer["usage"]["threshold_tokens"], len(upstream.asked)) == (0, 1)


def test_a_step_with_one_candidate_is_left_alone(serve: Serve, weak: str, upstream: FakeUpstream) -> None:
    answer = act(serve(settings_of(weak, STOP)), num_candidates=1)
    assert (answer["action"], answer["candidates"][0]["q_value"]) == (POOR[0], None)


def test_equal_candidates_count_as_well(serve: Serve, weak: str, upstream: FakeUpstream) -> None:
    upstream.replies = [POOR[0], POOR[0], POOR[0], GOOD, GOOD]
    client = serve(settings_of(weak, {"actions": ["refine"], "num_candidates": 3}))
    answer = act(client)
    assert (answer["action"], len(answer["candidates"])) == (GOOD, 5)


def test_an_escalated_step_names_the_policy_and_records_who_drew(
    serve: Serve, weak: str, strong: Address, tmp_path: Path
) -> None:
    client = serve(settings_of(weak, ESCALATE, other=strong[1], episodes_dir=tmp_path))
    answer = act(client, episode_id="e")
    assert (answer["action"], answer["policy"]) == (GOOD, "demo")
    assert answer["threshold"]["actions"][0]["policy"] == "strong"
    [asked] = strong[0].asked
    assert (asked["model"], asked["messages"]) == ("strong-1", [TASK])
    assert strong[0].sessions == ["e"]
    client.post("/v1/episodes/e/outcome", json={"reward": 1}).raise_for_status()
    [offer], [tree] = rows_in(tmp_path)
    assert offer.threshold == 0.6
    [action] = offer.actions
    assert (action.action, action.outcome, action.policy) == ("escalate", "raised", "strong")
    assert (action.candidates, action.q_before, action.q_after) == ((GOOD,), 0.5, 0.95)
    assert action.completion_tokens == len(GOOD.split())
    assert [node.source for node in tree.nodes] == ["strong"]


def test_what_a_step_escalated_to_costs_its_own_price(serve: Serve, weak: str, strong: Address) -> None:
    settings = settings_of(weak, ESCALATE, other=strong[1])
    prices = {"demo": Prices(prompt=1, completion=1), "strong": Prices(prompt=50, completion=50)}
    upstreams = {name: one.model_copy(update={"prices": prices[name]}) for name, one in settings.upstreams.items()}
    client = serve(settings.model_copy(update={"upstreams": upstreams}))
    answer = act(client)
    [taken] = answer["threshold"]["actions"]
    escalated = taken["prompt_tokens"] + taken["completion_tokens"]
    own = answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"] - escalated
    cost = (own + 50 * escalated) / 1e6
    assert answer["cost"]["sample"] == answer["cost"]["total"] == pytest.approx(cost)


def test_an_escalation_that_fails_leaves_the_step_as_it_is(serve: Serve, weak: str, strong: Address) -> None:
    strong[0].fault = "500"
    answer = act(serve(settings_of(weak, ESCALATE, other=strong[1])))
    assert answer["action"] == POOR[0]
    assert answer["threshold"]["actions"][0]["outcome"] == "failed"
    assert "escalate failed: upstream strong answered with 500" in answer["warnings"]


CHAT: Body = {"messages": [TASK], "qguide": {"num_candidates": 2}}
MESSAGE: Body = CHAT | {"max_tokens": 50, "model": "default"}
RESPONSE: Body = {"input": [TASK], "qguide": {"num_candidates": 2}}
DIALECTS = {
    "/v1/chat/completions": CHAT,
    "/v1/messages": MESSAGE,
    "/v1/responses": RESPONSE,
    "/v1/completions": {"prompt": "Put the mug.", "qguide": {"num_candidates": 2}},
}


@pytest.mark.parametrize("path", DIALECTS)
def test_every_dialect_has_the_actions_in_its_answer(serve: Serve, weak: str, path: str) -> None:
    client = serve(settings_of(weak, REFINE))
    answer = client.post(path, json=DIALECTS[path]).raise_for_status().json()
    assert GOOD in json.dumps(answer)
    guidance = answer["qguide"]
    assert guidance["threshold"]["actions"][0]["outcome"] == "raised"
    spent = guidance["usage"]["threshold"]
    assert spent["completion_tokens"] == len(GOOD.split())
    assert guidance["usage"]["sample"]["prompt_tokens"] > spent["prompt_tokens"]


def test_a_stream_has_the_actions_in_its_last_chunk(serve: Serve, weak: str) -> None:
    client = serve(settings_of(weak, REFINE))
    text = client.post("/v1/chat/completions", json=CHAT | {"stream": True}).text
    *_, last, _, _ = text.split("\n\n")
    guidance = json.loads(last.removeprefix("data: "))["qguide"]
    assert guidance["threshold"]["actions"][0]["action"] == "refine"


def _stopped(client: TestClient, path: str, body: Body) -> Body:
    response = client.post(path, json=body)
    assert response.status_code == 400, response.text
    error: Body = response.json()["error"]
    assert error["message"].startswith("stopped: the best of 2 candidates has a Q of 0.5")
    return error


def test_a_stopped_step_is_an_error_that_no_client_repeats(serve: Serve, weak: str) -> None:
    client = serve(settings_of(weak, STOP))
    figures = {"below": 0.6, "best_q": 0.5, "q_model": "q", "num_candidates": 2}
    for path, body in {"/v1/act": ACT, **DIALECTS}.items():
        error = _stopped(client, path, body)
        told = error["details"] if path == "/v1/messages" else error
        assert told.get("code", told.get("error_code")) == "below_threshold"
        assert figures.items() <= told["qguide"].items()
        assert told["qguide"]["completion_tokens"] > 0
    assert metric(client, 'qguide_threshold_actions_total{action="stop"') == len(DIALECTS) + 1


def test_a_stopped_stream_ends_with_the_error(serve: Serve, weak: str) -> None:
    client = serve(settings_of(weak, STOP))
    text = client.post("/v1/chat/completions", json=CHAT | {"stream": True}).text
    assert '"code": "below_threshold"' in text or '"code":"below_threshold"' in text
    assert "[DONE]" not in text


@pytest.mark.parametrize("told", [None, "Action: ask a person"])
def test_a_stopped_first_step_is_recorded_without_an_action(
    serve: Serve, weak: str, tmp_path: Path, told: str | None
) -> None:
    client = serve(settings_of(weak, STOP, episodes_dir=tmp_path))
    _stopped(client, "/v1/act", ACT | {"episode_id": "e"})
    outcome = {"reward": 0.5} | ({"action": told} if told else {})
    closed = client.post("/v1/episodes/e/outcome", json=outcome).raise_for_status().json()
    assert closed["recorded"] is True
    [offer], trees = rows_in(tmp_path)
    assert (offer.actions[-1].outcome, offer.taken) == ("stopped", told or "")
    assert [node.action for tree in trees for node in tree.nodes] == ([told] if told else [])


def test_a_stopped_later_step_ends_the_path_before_it(
    serve: Serve, weak: str, upstream: FakeUpstream, tmp_path: Path
) -> None:
    upstream.replies = [GOOD, *POOR]
    client = serve(settings_of(weak, STOP, episodes_dir=tmp_path))
    assert act(client, episode_id="e")["action"] == GOOD
    later = [TASK, {"role": "assistant", "content": GOOD}, {"role": "user", "content": "No."}]
    _stopped(client, "/v1/act", ACT | {"messages": later, "episode_id": "e"})
    client.post("/v1/episodes/e/outcome", json={"reward": 0.5}).raise_for_status()
    offers, [tree] = rows_in(tmp_path)
    assert [offer.taken for offer in offers] == [GOOD, ""]
    assert [(node.action, node.reward) for node in tree.nodes] == [(GOOD, 0.5)]


def test_a_threshold_may_belong_to_one_version(serve: Serve, weak: str) -> None:
    threshold = ThresholdSettings.model_validate({"below": 0.6} | REFINE)
    settings = settings_of(weak, REFINE, q_models={"q@1": SCRIPTED, "q@2": SCRIPTED}, thresholds={"q@2": threshold})
    client = serve(settings)
    assert "threshold" not in act(client, q_model="q@1")
    assert "threshold" in act(client, q_model="q@2")


def test_the_tokens_of_actions_count_against_the_callers_budget(serve: Serve, weak: str, tmp_path: Path) -> None:
    from qguide.server.http.keys import create_key

    keys = tmp_path / "keys.json"
    key = create_key(keys, "agent", tokens_per_day=10_000)
    client = serve(settings_of(weak, REFINE, keys_file=keys, public_metrics=True))
    client.headers["Authorization"] = f"Bearer {key}"
    before = act(client)
    spent = before["usage"]
    used = spent["prompt_tokens"] + spent["completion_tokens"] + spent["scored_tokens"]
    assert used > spent["threshold_tokens"] > 0
    small = create_key(keys, "small", tokens_per_day=spent["threshold_tokens"] + 1)
    client.headers["Authorization"] = f"Bearer {small}"
    act(client)
    assert client.post("/v1/act", json=ACT).status_code == 429


@pytest.mark.parametrize(
    ("threshold", "why"),
    [
        ({"actions": []}, r"actions\n.*too_short"),
        ({"actions": ["refine", "refine"]}, "actions .*twice"),
        ({"actions": ["stop", "refine"]}, "put 'stop' last"),
        ({"actions": ["escalate"]}, "'escalate' .*actions.*policy.*upstream"),
        ({"actions": ["refine"], "policy": "strong"}, "policy .*'escalate'; .*actions"),
        ({"actions": ["refine"], "num_candidates": 0}, r"num_candidates\n.*greater_than_equal"),
        ({"actions": ["refine"], "below": float("nan")}, r"below\n.*finite_number"),
    ],
)
def test_settings_that_mean_nothing_are_refused(threshold: Body, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ThresholdSettings.model_validate({"below": 0.5} | threshold)


def test_unknown_names_are_refused_at_the_start() -> None:
    url = "http://127.0.0.1:9/v1"
    threshold = ThresholdSettings.model_validate({"below": 0.5} | REFINE)
    unknown = settings_of(url, REFINE, thresholds={"else": threshold})
    with pytest.raises(ConfigError, match=r"QGUIDE_THRESHOLDS .*'else'.* QGUIDE_Q_MODELS: q, q@0$"):
        build_models(unknown)
    with pytest.raises(ConfigError, match=r"'q' .*'strong', .*\(demo\); .* QGUIDE_UPSTREAMS"):
        build_models(settings_of(url, ESCALATE))
    ranking = settings_of(url, REFINE, q_models={"q": "judge:demo"}, judges={"q": JudgeSettings(mode="rank")})
    with pytest.raises(ConfigError, match=r"QGUIDE_THRESHOLDS .*'q', .* mode 'score'"):
        build_models(ranking)
