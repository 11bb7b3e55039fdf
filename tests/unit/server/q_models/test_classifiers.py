"""A reward model's folder is served as a Q model, without a manifest."""

from pathlib import Path

import pytest

from qnet.models.checkpoint import load_qnet
from qnet.scoring.value_head import NaiveScorer
from qnet.types import Message, ScoreRequest
from server.settings.settings import SCRIPTED, Settings
from tests.support.tiny_models import CONTEXT, save_classifier
from tests.unit.server.conftest import Serve
from training.rollouts.models import Inference, build_scorer

TASK = "go to desk take mug from shelf"
SAID = ["go to desk", "take mug"]
REQUEST = ScoreRequest((Message("user", TASK),), tuple(Message("assistant", s) for s in SAID))


def test_a_folder_without_a_manifest_is_served_and_named_by_its_content(
    serve: Serve, tmp_path: Path
) -> None:
    folder = save_classifier(tmp_path / "reward")
    client = serve(Settings(policy=SCRIPTED, q_models={"reward": str(folder)}))
    body = {"messages": [{"role": "user", "content": TASK}], "candidates": SAID}
    scores = client.post("/v1/score", json=body).json()["scores"]
    [expected] = NaiveScorer(load_qnet(folder)).score([REQUEST])
    found = [score["q_value"] for score in scores]
    assert found == pytest.approx(expected.q_values, abs=1e-6)
    cards = {card["id"]: card for card in client.get("/v1/models").json()["data"]}
    [name] = [one for one in cards if one.startswith("reward@")]
    assert (cards[name]["context"], cards[name]["checkpoint"]) == (CONTEXT, "reward")
    other = save_classifier(tmp_path / "other", labels=1, architecture="qwen3")
    again = serve(Settings(policy=SCRIPTED, q_models={"reward": str(other)}))
    assert name not in {card["id"] for card in again.get("/v1/models").json()["data"]}


def test_a_job_scores_with_it_too(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "reward")
    [found] = build_scorer(str(folder), Inference()).score([REQUEST])
    [expected] = NaiveScorer(load_qnet(folder)).score([REQUEST])
    assert found.q_values == pytest.approx(expected.q_values, abs=1e-6)
