"""The choice by Q and the prior: from the request, the settings or the Q model's manifest."""

from pathlib import Path
from typing import Any

import pytest
import structlog
from fastapi.testclient import TestClient

from qguide.qnet.decision.selection import DEFAULT_TAU
from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.models.manifest import Manifest, OutcomeAtTau, PriorSection
from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.qnet.records import OfferRow
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.server.observability.metrics import Metrics
from qguide.server.q_models.registry import Models, QModels
from qguide.server.q_models.served import Runtime, ServedPolicy
from qguide.server.q_models.threaded import QModel, ScorerSource
from qguide.server.settings.settings import Settings
from qguide.training.data.runs import read_rows
from tests.unit.server.conftest import FAKES, SERVED, Serve

TASK = [{"role": "user", "content": "You see a desk. Your task is to: take the mug."}]
REPLIES = ["Action: look", "Action: wait", "Action: look", "Action: look"]
Q = {"look": 0.5, "wait": 0.52}


def served(serve: Serve, prior: PriorSection | None = None, **settings: Any) -> TestClient:
    """A policy that draws `look` three times of four; a Q model that slightly prefers `wait`."""

    def build(_: Settings) -> Models:
        runtime = Runtime(DeviceThread(), DeviceThread(), Metrics(), SERVED)
        manifest = Manifest(kind="qnet", name="q", read_at="last_token", prior=prior)
        origin = ScorerSource(lambda: ScriptedScorer(Q), "checkpoint", manifest)
        model = QModel("q", "0", origin, runtime)
        model.open()
        q_models = QModels(runtime.metrics)
        q_models.add(model)
        q_models.configure({"default": {"q": 1.0}}, {})
        policy = ServedPolicy("scripted", ScriptedPolicy(REPLIES), "scripted", None)
        return Models(runtime, policy, q_models)

    return serve(FAKES.model_copy(update=settings), build)


def act(client: TestClient, **body: Any) -> dict[str, Any]:
    asked = {"messages": TASK, "num_candidates": 4} | body
    answer: dict[str, Any] = client.post("/v1/act", json=asked).raise_for_status().json()
    return answer


def test_without_a_fitted_prior_q_alone_chooses(serve: Serve) -> None:
    answer = act(served(serve))
    assert (answer["action"], answer["reason"], answer["tau"]) == (REPLIES[1], "highest_q", None)
    assert [c["posterior"] for c in answer["candidates"]] == [None] * 4
    assert [c["prior"] for c in answer["candidates"]] == pytest.approx([0.7, 0.3, 0.7, 0.7])


def test_a_fitted_prior_is_the_default(serve: Serve) -> None:
    answer = act(served(serve, PriorSection(tau=0.1)))
    assert (answer["action"], answer["reason"]) == (REPLIES[0], "highest_posterior")
    assert (answer["tau"], answer["prior_by"], answer["guided"]) == (0.1, "votes", True)
    shares = [c["posterior"] for c in answer["candidates"]]
    assert shares[0] + shares[1] == pytest.approx(1)


def test_the_request_comes_before_the_setting_and_the_setting_before_the_manifest(serve: Serve) -> None:
    fitted = PriorSection(tau=0.1)
    assert act(served(serve, fitted, selection="argmax"))["reason"] == "highest_q"
    assert act(served(serve, fitted, tau=0.2))["tau"] == 0.2
    assert act(served(serve, fitted), selection="argmax")["reason"] == "highest_q"
    weighed = act(served(serve, selection="argmax"), selection="posterior")
    assert (weighed["reason"], weighed["tau"]) == ("highest_posterior", DEFAULT_TAU)


def test_a_tau_alone_asks_for_the_posterior(serve: Serve) -> None:
    client = served(serve)
    assert act(client, tau=0.001)["action"] == REPLIES[1]
    assert act(client, tau=1)["action"] == REPLIES[0]
    assert act(client, tau=0)["reason"] == "highest_posterior"


def test_a_tau_below_zero_is_refused(serve: Serve) -> None:
    answer = served(serve).post("/v1/act", json={"messages": TASK, "tau": -1})
    assert answer.status_code == 422


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": TASK}),
        ("/v1/responses", {"input": TASK[0]["content"]}),
        ("/v1/messages", {"messages": TASK, "max_tokens": 64}),
        ("/v1/completions", {"prompt": TASK[0]["content"]}),
    ],
)
def test_every_dialect_has_the_options_and_the_shares(serve: Serve, path: str, body: dict[str, Any]) -> None:
    options = {"num_candidates": 4, "tau": 0.1, "return_candidates": True}
    answer = served(serve).post(path, json=body | {"qguide": options})
    assert answer.status_code == 200, answer.text
    guidance = answer.json()["qguide"]
    assert (guidance["reason"], guidance["tau"]) == ("highest_posterior", 0.1)
    assert guidance["prior"] == pytest.approx([0.7, 0.3, 0.7, 0.7])
    assert guidance["posterior"][0] > guidance["posterior"][1]
    assert [c["posterior"] for c in guidance["candidates"]] == guidance["posterior"]


def test_a_header_is_enough(serve: Serve) -> None:
    headers = {"X-QGuide-Tau": "0.1", "X-QGuide-Prior": "votes", "X-QGuide-Num-Candidates": "4"}
    answer = served(serve).post("/v1/chat/completions", json={"messages": TASK}, headers=headers)
    assert answer.json()["qguide"]["reason"] == "highest_posterior"


def test_the_next_best_choices_follow_the_posterior(serve: Serve) -> None:
    body = {"messages": TASK, "n": 2, "qguide": {"num_candidates": 4, "tau": 0.1}}
    answer = served(serve).post("/v1/chat/completions", json=body).json()
    assert answer["qguide"]["returned"] == [0, 1]


def test_a_likelihood_that_no_candidate_has_is_replaced_by_votes_with_a_warning(serve: Serve) -> None:
    answer = act(served(serve), prior="likelihood", tau=0.1)
    assert (answer["prior_by"], answer["reason"]) == ("votes", "highest_posterior")
    assert any("no logprob" in warning for warning in answer["warnings"])


def test_a_likelihood_that_only_the_manifest_names_is_logged_once_and_counted(serve: Serve) -> None:
    client = served(serve, PriorSection(tau=0.1, by="likelihood"))
    with structlog.testing.capture_logs() as logged:
        answers = [act(client) for _ in range(3)]
    assert [(answer["prior_by"], answer["warnings"]) for answer in answers] == [("votes", [])] * 3
    [told] = [one for one in logged if one["event"] == "votes in place of likelihoods"]
    assert (told["q_model"], told["policy"]) == ("q@0", "scripted")
    metrics = client.get("/metrics").text
    assert 'qguide_missing_likelihood_total{policy="scripted",q_model="q@0"} 3.0' in metrics


def score(client: TestClient, **body: Any) -> Any:
    asked = {"messages": TASK, "candidates": ["Action: look", "Action: wait"]}
    return client.post("/v1/score", json=asked | body)


def test_own_candidates_bring_their_counts(serve: Serve) -> None:
    answer = score(served(serve), counts=[3, 1], tau=0.1).raise_for_status().json()
    assert (answer["chosen"], answer["reason"], answer["tau"]) == (0, "highest_posterior", 0.1)
    assert [one["prior"] for one in answer["scores"]] == pytest.approx([0.7, 0.3])
    assert sum(one["posterior"] for one in answer["scores"]) == pytest.approx(1)


def test_own_candidates_may_bring_logprobs_instead(serve: Serve) -> None:
    client = served(serve)
    answer = score(client, logprobs=[-5.0, -1.0], selection="posterior").raise_for_status().json()
    assert answer["chosen"] == 1
    both = {"counts": [3, 1], "logprobs": [-5.0, -1.0], "tau": 1.0}
    assert score(client, **both).json()["chosen"] == 0


def test_a_fitted_prior_needs_counts_to_choose_by(serve: Serve) -> None:
    client = served(serve, PriorSection(tau=0.1))
    plain = score(client).raise_for_status().json()
    assert (plain["chosen"], plain["reason"]) == (1, "highest_q")
    assert "prior" not in plain["scores"][0]
    assert score(client, counts=[3, 1]).json()["chosen"] == 0


def test_a_posterior_without_draws_is_refused(serve: Serve) -> None:
    answer = score(served(serve), selection="posterior")
    assert answer.status_code == 400
    assert "neither counts nor logprobs" in answer.json()["error"]["message"]


def test_counts_that_are_not_one_per_candidate_are_refused(serve: Serve) -> None:
    answer = score(served(serve), counts=[1, 2, 3])
    assert answer.status_code == 400
    assert "counts has 3 entries, but there are 2 candidates" in answer.json()["error"]["message"]


def test_a_batch_chooses_by_one_rule(serve: Serve) -> None:
    item = {"messages": TASK, "candidates": ["Action: look", "Action: wait"], "counts": [3, 1]}
    body = {"items": [item, item | {"counts": [1, 3]}], "tau": 0.1}
    answer = served(serve).post("/v1/score/batch", json=body).raise_for_status().json()
    assert [one["chosen"] for one in answer["items"]] == [0, 1]


def test_where_q_is_the_same_for_all_own_candidates_the_votes_decide(serve: Serve) -> None:
    same = {"candidates": ["Action: sit", "Action: go"], "counts": [1, 2]}
    answer = score(served(serve), **same).json()
    assert (answer["chosen"], answer["reason"]) == (1, "likeliest")


def test_a_fitted_prior_is_listed_with_its_curve(serve: Serve) -> None:
    curve = (OutcomeAtTau(tau=0.1, outcome=0.5, standard_error=0.0),)
    fitted = PriorSection(tau=0.1, curve=curve, decisions=40, tasks=12)
    [card] = served(serve, fitted).get("/v1/models").json()["q_models"]
    assert card["prior"] == {
        "tau": 0.1,
        "by": "votes",
        "greedy_weight": 0.0,
        "decisions": 40,
        "tasks": 12,
        "curve": [{"tau": 0.1, "outcome": 0.5, "standard_error": 0.0}],
    }
    [weighed] = served(serve, PriorSection(tau=0.1, greedy_weight=2.0)).get("/v1/models").json()["q_models"]
    assert weighed["prior"]["greedy_weight"] == 2.0
    [plain] = served(serve).get("/v1/models").json()["q_models"]
    assert "prior" not in plain


def test_the_record_of_a_step_keeps_its_tau(serve: Serve, tmp_path: Path) -> None:
    client = served(serve, episodes_dir=tmp_path)
    act(client, tau=0.1, episode_id="e")
    client.post("/v1/episodes/e/outcome", json={"reward": 1}).raise_for_status()
    (file,) = tmp_path.glob("offers-*.jsonl")
    (offer,) = read_rows(file, OfferRow)
    assert (offer.reason, offer.tau) == ("highest_posterior", 0.1)
    assert [candidate.count for candidate in offer.candidates] == [3, 1]


def test_a_fitted_weight_counts_where_the_greedy_reply_is_drawn(serve: Serve) -> None:
    weighed = served(serve, PriorSection(tau=0.02, greedy_weight=1.0))
    plain = served(serve, PriorSection(tau=0.02))
    drawn = {"temperature": 0.7, "greedy_candidate": True}
    assert act(plain, **drawn)["action"] == REPLIES[1]
    assert act(weighed, **drawn)["action"] == REPLIES[0]
    assert act(weighed, temperature=0.7, greedy_candidate=False)["action"] == REPLIES[1]
    assert act(weighed, **drawn, selection="argmax")["reason"] == "highest_q"
