"""Episodes served with a judge → label → train-qnet → a Q model that needs no judge."""

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from qguide.cli import app
from qguide.qnet.models.checkpoint import save_checkpoint
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.records import TreeRow
from qguide.server.app import create_app
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import SCRIPTED, Settings
from qguide.training.data.runs import read_rows
from tests.support.serving import serving_app
from tests.support.tiny_models import policy_model, renderer

PLACES = ("desk", "shelf", "bed", "sofa")
REPLIES = [f"Action: {said}" for said in ("take mug", "open you", "see you", "go you")]
"""Of these the task has all words of the first, and none of the others."""
LABEL = """
trees = {trees}
output = "{folder}/labels"
target = "judge"
"""
TRAIN_QNET = """
labels = ["{folder}/labels"]
trunk = "{folder}/policy"
output = "{folder}/qnet"
head_width = 16
validation_fraction = 0.25
[optimization]
lr = 0.01
epochs = 20
"""


def play(client: TestClient, place: str) -> None:
    """An episode of two steps, each guided by the judge."""
    messages = [{"role": "user", "content": f"take the mug from the {place}"}]
    for _ in range(2):
        body = {"messages": messages, "episode_id": place, "num_candidates": len(REPLIES), "greedy_candidate": False}
        answer = client.post("/v1/act", json=body).raise_for_status().json()
        assert answer["judge"]
        messages.append({"role": "assistant", "content": answer["action"]})
        messages.append({"role": "user", "content": "Nothing happens."})
    closed = client.post(f"/v1/episodes/{place}/outcome", json={"reward": 1.0})
    assert closed.raise_for_status().json()["recorded"], closed.text


def run_job(folder: Path, job: str, text: str) -> None:
    config = folder / f"{job}.toml"
    config.write_text(text)
    result = CliRunner().invoke(app, [job, "--config", str(config)], catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.fixture
def labels(tmp_path: Path) -> list[TreeRow]:
    """The labels of recorded episodes that the fake upstream drew and judged."""
    with serving_app(FakeUpstream(replies=REPLIES).app()) as url:
        settings = Settings(
            policy="demo",
            upstreams={"demo": Upstream.model_validate({"url": f"{url}/v1", "model": "fake-1"})},
            q_models={"q": "judge:demo"},
            episodes_dir=tmp_path / "served",
        )
        with TestClient(create_app(settings), "http://localhost") as client:
            for place in PLACES:
                play(client, place)
    trees = [str(path) for path in (tmp_path / "served").glob("trees-*.jsonl")]
    run_job(tmp_path, "label", LABEL.format(trees=json.dumps(trees), folder=tmp_path))
    return list(read_rows(tmp_path / "labels" / "rows.jsonl", TreeRow))


def test_a_small_q_model_learns_the_judges_scores(labels: list[TreeRow], tmp_path: Path) -> None:
    assert {tuple(row.values) for row in labels} == {("judge",)}
    judged = {
        (node.action, node.tried): q
        for row in labels
        for node, q in zip(row.nodes, row.values["judge"], strict=True)
        if node.depth == 1
    }
    assert judged == {(REPLIES[0], True): 1.0} | {(reply, False): 0.0 for reply in REPLIES[1:]}

    save_checkpoint(
        tmp_path / "policy",
        model=policy_model(context=1024).model,
        tokenizer=renderer().tokenizer,
        manifest=Manifest(kind="policy", name="tiny", environment="served"),
    )
    run_job(tmp_path, "train-qnet", TRAIN_QNET.format(folder=tmp_path))
    again = Settings(policy=SCRIPTED, q_models={"q": str(tmp_path / "qnet" / "checkpoint")})
    history = [{"role": "user", "content": f"take the mug from the {PLACES[0]}"}]
    with TestClient(create_app(again), "http://localhost") as client:
        [card] = client.get("/v1/models").json()["q_models"]
        body = {"messages": history, "candidates": REPLIES}
        answer = client.post("/v1/score", json=body).raise_for_status().json()
    assert (card["target"], card["judge"], answer["judge"]) == ("judge", None, False)
    q_values = [score["q_value"] for score in answer["scores"]]
    assert q_values[0] == max(q_values), f"the judge's favourite is the Q model's: {q_values}"
