"""A reward model is a Q model: its folder without a manifest, or a server that classifies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qguide.qnet.errors import ConfigError
from qguide.qnet.models.checkpoint import load_qnet
from qguide.qnet.scoring.value_head import NaiveScorer
from qguide.qnet.types import Message, ScoreRequest
from qguide.server.q_models.build import build_models
from qguide.server.settings.remote_models import Classifier, VllmTrunk
from qguide.server.settings.settings import SCRIPTED, Settings
from qguide.training.rollouts.models import Inference, build_scorer
from tests.support.scripted_vllm import ScriptedVllm, scripted_vllm
from tests.support.tiny_models import CONTEXT, save_classifier
from tests.unit.server.conftest import Serve

TASK = "go to desk take mug from shelf"
SAID = ["go to desk", "take mug"]
REQUEST = ScoreRequest((Message("user", TASK),), tuple(Message("assistant", s) for s in SAID))


def test_a_folder_without_a_manifest_is_served_and_named_by_its_content(serve: Serve, tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "reward")
    client = serve(Settings(policy=SCRIPTED, q_models={"reward": str(folder)}))
    body = {"messages": [{"role": "user", "content": TASK}], "candidates": SAID}
    scores = client.post("/v1/score", json=body).json()["scores"]
    [expected] = NaiveScorer(load_qnet(folder)).score([REQUEST])
    found = [score["q_value"] for score in scores]
    assert found == pytest.approx(expected.q_values, abs=1e-5)
    cards = {card["id"]: card for card in client.get("/v1/models").json()["q_models"]}
    [name] = [one for one in cards if one.startswith("reward@")]
    assert (cards[name]["context"], cards[name]["checkpoint"]) == (CONTEXT, "reward")
    other = save_classifier(tmp_path / "other", labels=1, architecture="qwen3")
    again = serve(Settings(policy=SCRIPTED, q_models={"reward": str(other)}))
    assert name not in {card["id"] for card in again.get("/v1/models").json()["q_models"]}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ScriptedVllm]:
    folder = save_classifier(tmp_path / "reward")
    with scripted_vllm(folder, model="rm", context=CONTEXT, classifies=True) as server:
        yield server


def settings_of(folder: Path, url: str, **more: Any) -> Settings:
    fields = {"url": url, "model": "rm", "api_key": "key"}
    return Settings(
        policy=SCRIPTED,
        q_models={"reward@v1": str(folder), "demo": SCRIPTED},
        **{"classifiers": {"reward": Classifier.model_validate(fields)}} | more,
    )


def test_a_classifier_on_a_server_is_a_q_model_and_its_failure_a_503(
    serve: Serve, served: ScriptedVllm, tmp_path: Path
) -> None:
    client = serve(settings_of(tmp_path / "reward", served.url))
    body = {"messages": [{"role": "user", "content": TASK}], "candidates": SAID}
    scores = client.post("/v1/score", json=body).json()["scores"]
    [expected] = NaiveScorer(load_qnet(tmp_path / "reward")).score([REQUEST])
    found = [score["q_value"] for score in scores]
    assert found == pytest.approx(expected.q_values, abs=1e-5)
    assert served.keys == {"Bearer key"}
    served.fault = "status_500"
    failed = client.post("/v1/score", json=body)
    assert (failed.status_code, failed.headers["Retry-After"]) == (503, "1")
    assert "answered /classify with 500" in failed.json()["error"]["message"]
    assert "127.0.0.1" not in failed.text
    other = client.post("/v1/score", json=body | {"q_model": "demo"})
    assert other.status_code == 200


def test_a_server_of_no_folder_or_for_two_purposes_is_refused(tmp_path: Path) -> None:
    entry = Classifier.model_validate({"url": "http://127.0.0.1:1", "model": "rm"})
    for name, reason in (("demo", "a scripted Q model"), ("none", "not a Q model")):
        settings = settings_of(tmp_path, "http://127.0.0.1:1", classifiers={name: entry})
        with pytest.raises(ConfigError, match=f"QGUIDE_CLASSIFIERS names '{name}', .*{reason}"):
            build_models(settings)
    trunk = VllmTrunk.model_validate({"url": "http://127.0.0.1:1"})
    both = settings_of(tmp_path, "http://127.0.0.1:1", vllm_trunks={"reward": trunk})
    with pytest.raises(ConfigError, match=r"QGUIDE_VLLM_TRUNKS and QGUIDE_CLASSIFIERS .*'reward'"):
        build_models(both)


def test_a_job_asks_a_server_by_the_name_of_the_classifier(
    served: ScriptedVllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"url": served.url, "tokenizer": tmp_path / "reward", "api_key_variable": "RM_KEY"}
    inference = Inference.model_validate({"classifiers": {"rm": entry}})
    with pytest.raises(ConfigError, match=r"\brm: .* RM_KEY .*api_key_variable"):
        build_scorer("classify:rm", inference)
    monkeypatch.setenv("RM_KEY", "key")
    [found] = build_scorer("classify:rm", inference).score([REQUEST])
    [expected] = NaiveScorer(load_qnet(tmp_path / "reward")).score([REQUEST])
    assert found.q_values == pytest.approx(expected.q_values, abs=1e-5)
    with pytest.raises(ConfigError, match=r"'classify:x', .*inference\.classifiers .*rm; .*'x'$"):
        build_scorer("classify:x", inference)


def test_a_job_scores_with_it_too(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "reward")
    [found] = build_scorer(str(folder), Inference()).score([REQUEST])
    [expected] = NaiveScorer(load_qnet(folder)).score([REQUEST])
    assert found.q_values == pytest.approx(expected.q_values, abs=1e-5)
