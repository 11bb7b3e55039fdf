"""Tokens are counted and charged, whatever becomes of the request that used them."""

import asyncio
from collections.abc import Sequence
from threading import Event
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.qnet.types import Candidate, History, Sampling, ScoreRequest, ScoreResult
from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from qguide.server.q_models.build import build_models
from qguide.server.q_models.registry import Models
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import Settings
from tests.unit.server.conftest import FAKES, Serve, models_of

ACT = {"messages": [{"role": "user", "content": "Your task is to: look"}], "num_candidates": 3}
ADAPTIVE = ACT | {"adaptive": True, "previous_q": 9.0, "num_candidates": 4}


def counted(client: TestClient, name: str, **labels: str) -> float:
    assert isinstance(client.app, FastAPI)
    registry = client.app.state.metrics.registry
    return registry.get_sample_value(f"qguide_{name}", labels) or 0.0


def dead_scorer(settings: Settings) -> Models:
    models = build_models(settings)
    models.runtime.thread.close()
    return models


def test_a_step_that_fails_after_its_draws_has_used_up_the_budget(serve: Serve) -> None:
    client = serve(FAKES.model_copy(update={"tokens_per_day": 5}), dead_scorer)
    assert [client.post("/v1/act", json=ACT).status_code for _ in range(3)] == [503, 429, 429]
    assert counted(client, "completion_tokens_total") > 5
    assert counted(client, "prompt_tokens_total") == 5
    for stage in ("sample", "score"):
        assert counted(client, "stage_seconds_count", stage=stage) == 1


def test_a_paraphrase_costs_the_same_where_the_step_fails(serve: Serve) -> None:
    settings = FAKES.model_copy(update={"paraphraser": "scripted"})
    well, dead = serve(settings), serve(settings, dead_scorer)
    many = ACT | {"num_candidates": 8, "perturb": True}  # fewer would all be the same
    assert [client.post("/v1/act", json=many).status_code for client in (well, dead)] == [200, 503]
    drawn = [counted(client, "completion_tokens_total") for client in (well, dead)]
    assert drawn[0] == drawn[1] > 0
    assert counted(dead, "stage_seconds_count", stage="paraphrase") == 1


def test_a_draw_that_is_cut_off_is_timed(serve: Serve) -> None:
    class Hanging(ScriptedPolicy):
        async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
            await asyncio.sleep(3600)
            return []

    client = serve(build=lambda _: models_of(Hanging(), ScriptedScorer({}), DeviceThread()))
    late = client.post("/v1/act", json=ACT, headers={"X-QGuide-Timeout-S": "0.2"})
    assert (late.status_code, late.json()["error"]["code"]) == (503, "deadline_exceeded")
    assert "within 0.2 s, candidates were still being drawn" in late.json()["error"]["message"]
    assert counted(client, "stage_seconds_count", stage="sample") == 1
    # The deadline begins a little before the stage.
    assert counted(client, "stage_seconds_sum", stage="sample") >= 0.1


@pytest.mark.parametrize("ended", ["answered", "failed", "given_up"])
def test_every_request_that_waited_for_the_device_is_timed(serve: Serve, ended: str) -> None:
    gate = Event()

    class Scorer(ScriptedScorer):
        def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
            if ended == "given_up":
                gate.wait(30)
            if ended == "failed":
                raise ZeroDivisionError
            return super().score(requests)

    client = serve(build=lambda _: models_of(ScriptedPolicy(), Scorer({}), DeviceThread()))
    patience_s = "0.2" if ended == "given_up" else "30"
    client.post("/v1/act", json=ACT, headers={"X-QGuide-Timeout-S": patience_s})
    gate.set()
    counts = {
        end: counted(client, "queue_seconds_count", q_model="scripted@0", ended=end)
        for end in ("answered", "failed", "given_up")
    }
    assert counts == {"answered": 0, "failed": 0, "given_up": 0} | {ended: 1}


@pytest.mark.parametrize("body", [ACT, ADAPTIVE, ADAPTIVE | {"perturb": True}])
def test_an_answer_says_what_was_charged(serve: Serve, body: dict[str, Any]) -> None:
    client = serve(FAKES.model_copy(update={"paraphraser": "scripted"}))
    usage = client.post("/v1/act", json=body).json()["usage"]
    drawn = usage["completion_tokens"] + usage["paraphrase_tokens"]
    assert counted(client, "completion_tokens_total") == drawn
    assert counted(client, "prompt_tokens_total") == usage["prompt_tokens"]
    computed = counted(client, "scorer_tokens_total", q_model="demo@0", kind="computed")
    assert computed == usage["scored_tokens"] > 0


@pytest.mark.parametrize("n", ["parallel", "one_request"])
def test_what_an_upstream_answered_is_charged_where_the_rest_of_the_draw_fails(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream, n: str
) -> None:
    upstream.fault, upstream.faults_after = "500", 1
    client = serve(in_a_row(address[1], n, role="policy"))
    # Also where one request draws: the greedy candidate is one of its own.
    assert client.post("/v1/act", json=ACT | {"seed": 0}).status_code == 502
    assert counted(client, "completion_tokens_total") == len(DEFAULT_REPLIES[0].split())
    assert counted(client, "prompt_tokens_total") == 5


def test_paraphrases_that_fail_half_way_are_charged_and_said(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    upstream.fault, upstream.faults_after = "500", 1
    client = serve(in_a_row(address[1], "parallel", role="paraphraser"))
    answer = client.post("/v1/act", json=ACT | {"perturb": True}).json()
    assert "demo failed: upstream demo answered with 500" in answer["warnings"][0]
    drawn = len(DEFAULT_REPLIES[0].split())
    assert answer["usage"]["paraphrase_tokens"] == drawn
    read = 4  # words of "Paraphrase the text: look"
    assert counted(client, "paraphrase_tokens_total") == drawn + read


def in_a_row(url: str, n: str, *, role: str) -> Settings:
    """One connection puts the requests of a draw in a row."""
    served = {"url": url, "model": "m", "n": n, "max_connections": 1}
    upstreams = {"demo": Upstream.model_validate(served)}
    return FAKES.model_copy(update={"upstreams": upstreams, role: "demo"})
