"""Routes and headers beside the answers: models, health, metrics, request ids, logs, settings."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError
from typer.testing import CliRunner

from qguide.cli import app as cli
from qguide.qnet.errors import CheckpointError, RoutingError
from qguide.server.q_models.build import build_models
from qguide.server.settings.settings import EMBEDDED, SCRIPTED, Settings
from tests.support.serving import free_port
from tests.unit.server.conftest import FAKES, Serve

BODY = {"messages": [{"role": "user", "content": "a secret place"}], "num_candidates": 3}


def test_models_lists_the_policy_and_apart_from_it_the_q_models(client: TestClient) -> None:
    answer = client.get("/v1/models").json()
    cards = answer["data"] + answer["q_models"]
    assert [card["id"] for card in answer["data"]] == ["scripted"], "a picker shows what chats"
    listed = [(card["kind"], card["id"], card["source"], card["default"]) for card in cards]
    assert listed == [
        ("policy", "scripted", "scripted", True),
        ("q_model", "demo@0", "scripted", True),
        ("q_model", "other@0", "scripted", False),
    ]


def test_the_documentation_describes_every_endpoint(client: TestClient) -> None:
    assert client.get("/docs").status_code == 200
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {
        "/v1/act",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/responses/compact",
        "/v1/responses/{response_id}",
        "/v1/responses/{response_id}/cancel",
        "/v1/responses/{response_id}/input_items",
        "/v1/conversations",
        "/v1/conversations/{conversation_id}",
        "/v1/conversations/{conversation_id}/items",
        "/v1/conversations/{conversation_id}/items/{item_id}",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/api/chat",
        "/api/generate",
        "/api/ps",
        "/api/tags",
        "/api/show",
        "/api/version",
        "/v1beta/models",
        "/v1beta/models/{model}",
        "/v1beta/models/{model}:generateContent",
        "/v1beta/models/{model}:streamGenerateContent",
        "/v1beta/models/{model}:countTokens",
        "/v1/score",
        "/v1/attempts",
        "/v1/score/batch",
        "/v1/rerank",
        "/v2/rerank",
        "/rerank",
        "/score",
        "/classify",
        "/pooling",
        "/info",
        "/tokenize",
        "/verify",
        "/v1/episodes/{episode_id}/outcome",
        "/v1/models",
        "/v1/models/{model_id}",
        "/healthz",
        "/readyz",
        "/version",
        "/metrics",
        "/playground/abilities",
    }


def test_metrics_count_requests_stages_and_tokens(client: TestClient) -> None:
    usage = client.post("/v1/act", json=BODY).json()["usage"]
    client.post("/v1/act", json={})
    text = client.get("/metrics").text
    for line in (
        'qguide_requests_total{route="/v1/act",status="200"} 1.0',
        'qguide_requests_total{route="/v1/act",status="422"} 1.0',
        'qguide_stage_seconds_count{stage="sample"} 1.0',
        'qguide_stage_seconds_count{stage="score"} 1.0',
        'qguide_request_seconds_count{route="/v1/act"} 2.0',
        f"qguide_completion_tokens_total {float(usage['completion_tokens'])}",
        "qguide_distinct_candidates_sum 3.0",
    ):
        assert line in text


def test_metrics_tell_of_each_q_models_batches_tokens_and_cache(serve: Serve) -> None:
    # The embedded Q model, with a cache that holds nothing beyond a request.
    client = serve(Settings(policy=SCRIPTED, q_models={"embedded": EMBEDDED}, cache_bytes=0))
    body = {"messages": BODY["messages"], "candidates": ["Action: look", "Action: inventory"]}
    answer = client.post("/v1/score", json=body).json()
    q_model = f"embedded@{answer['q_model_version']}"
    text = client.get("/metrics").text
    for line in (
        f'qguide_queue_seconds_count{{ended="answered",q_model="{q_model}"}} 1.0',
        f'qguide_queue_seconds_count{{ended="given_up",q_model="{q_model}"}} 0.0',
        f'qguide_batch_requests_sum{{q_model="{q_model}"}} 1.0',
        f'qguide_batch_seconds_count{{q_model="{q_model}"}} 1.0',
        f'qguide_cache_evictions_total{{q_model="{q_model}"}} 1.0',
        f'qguide_cache_bytes{{q_model="{q_model}"}} 0.0',
        f'qguide_scorer_tokens_total{{kind="computed",q_model="{q_model}"}} {float(answer["usage"]["scored_tokens"])}',
        f'qguide_scorer_tokens_total{{kind="cached",q_model="{q_model}"}} 0.0',
    ):
        assert line in text


def test_versions_aliases_and_shadows_come_from_the_settings(serve: Serve) -> None:
    settings = Settings(
        policy=SCRIPTED,
        q_models={"a@1": SCRIPTED, "a@2": SCRIPTED, "b@1": SCRIPTED},
        default_q_model="stable",
        aliases={"stable": "trial", "trial": {"a": 9, "a@2": 1}},
        shadows={"a": "b"},
    )
    listed = serve(settings).get("/v1/models").json()
    assert listed["aliases"] == {"a": "a@1", "b": "b@1", "stable": "trial", "default": "stable"}
    assert listed["splits"] == {"trial": {"a": 9.0, "a@2": 1.0}}
    assert listed["shadows"] == {"a": "b"}
    cards = listed["data"] + listed["q_models"]
    defaults = [card["id"] for card in cards if card["default"]]
    assert defaults == ["scripted", "a@1", "a@2"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("scripted", "scripted"),
        ("default", "scripted"),
        ("demo@0", "demo@0"),
        ("demo", "demo@0"),
        ("trial/one", "other@0"),
    ],
)
def test_a_model_is_found_by_any_of_its_names(serve: Serve, name: str, found: str) -> None:
    client = serve(FAKES.model_copy(update={"aliases": {"trial/one": "other"}}))
    card = client.get(f"/v1/models/{name}").json()
    listed = client.get("/v1/models").json()
    assert card in listed["data"] + listed["q_models"]
    assert card["id"] == found


@pytest.mark.parametrize("name", ["gpt-9", "both"])
def test_a_name_that_is_no_one_models_is_404(serve: Serve, name: str) -> None:
    settings = FAKES.model_copy(update={"aliases": {"both": {"demo": 1, "other": 1}}})
    response = serve(settings).get(f"/v1/models/{name}")
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (404, "model_not_found")
    assert f"no single model '{name}'; this server has scripted, " in error["message"]


def test_a_request_keeps_its_id(client: TestClient) -> None:
    response = client.get("/healthz", headers={"X-Request-ID": "trace-1.a"})
    assert response.headers["x-request-id"] == "trace-1.a"


@pytest.mark.parametrize("given", ["", "two words", "x" * 65, "évil"])
def test_an_id_that_could_harm_a_log_is_replaced(client: TestClient, given: str) -> None:
    response = client.get("/healthz", headers={b"X-Request-ID": given.encode()})
    assert response.headers["x-request-id"] != given
    assert response.headers["x-request-id"].isalnum()


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QGUIDE_PORT", "9000")
    monkeypatch.setenv("QGUIDE_Q_MODELS", '{"big": "models/big", "demo": "scripted"}')
    settings = Settings()
    assert settings.port == 9000
    assert list(settings.q_models) == ["big", "demo"]


def test_a_setting_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QGUIDE_MAX_CANDIDATES", "0")
    with pytest.raises(ValidationError, match="max_candidates"):
        Settings()


def test_a_default_that_is_not_served_is_refused() -> None:
    with pytest.raises(RoutingError, match=r"'default' .*'large', .* demo@0, other@0$"):
        build_models(FAKES.model_copy(update={"default_q_model": "large"}))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json; .*checkpoint"):
        build_models(Settings(policy=str(tmp_path), q_models={"demo": SCRIPTED}))


def test_serve_says_what_it_cannot_load_without_a_traceback(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["serve", "--port", str(free_port()), "--policy", str(tmp_path)])
    assert result.exit_code == 1
    assert "holds no config.json" in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_the_console_script_knows_every_command() -> None:
    listed = CliRunner().invoke(cli, ["--help"]).output
    for command in ("collect", "sft", "explore", "label", "train-qnet", "evaluate", "compare"):
        assert command in listed
    assert "play" in listed
    assert "serve" in listed
