"""Served episodes and their outcomes → label → train-qnet → a Q model that is served."""

import json
from pathlib import Path

from fastapi.testclient import TestClient
from typer.testing import CliRunner

from qguide.cli import app
from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.models.checkpoint import save_checkpoint
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.qnet.records import TreeRow
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.server.app import create_app
from qguide.server.q_models.registry import Models
from qguide.server.settings.settings import SCRIPTED, Settings
from qguide.training.data.records import tree_from_row
from qguide.training.data.runs import read_rows
from qguide.training.environments.corridor import Corridor, CorridorEnvironment
from qguide.training.trajectory import parse_action, react_reply
from tests.support.tiny_models import policy_model, renderer
from tests.unit.server.conftest import models_of

SYSTEM = {"role": "system", "content": "You walk through corridors."}
ACTIONS = ("go left", "go right", "take key", "open door")
SEEDS = range(6)
MAX_STEPS = 8

LABEL = """
trees = {trees}
output = "{folder}/labels"
"""
TRAIN_QNET = """
labels = ["{folder}/labels"]
trunk = "{folder}/policy"
output = "{folder}/qnet"
head_width = 16
validation_fraction = 0.3
[optimization]
lr = 0.003
epochs = 1
"""


def build(_: Settings) -> Models:
    """A server that offers every action of a corridor; its Q model prefers opening doors."""
    policy = ScriptedPolicy([react_reply("Well.", action) for action in ACTIONS])
    return models_of(policy, ScriptedScorer({"open door": 1.0}), DeviceThread())


def play(client: TestClient, seed: int, *, knows_the_way: bool) -> float:
    """One episode through HTTP: the server's choice, or the right one of its candidates."""
    corridor = Corridor.of_seed(seed)
    environment = CorridorEnvironment(corridor)
    episode = f"{seed}-{knows_the_way}"
    way = corridor.solution()
    messages = [SYSTEM, {"role": "user", "content": environment.reset()}]
    for step in range(MAX_STEPS):
        body = {"messages": messages, "episode_id": episode, "num_candidates": len(ACTIONS)}
        answer = client.post("/v1/act", json=body).raise_for_status().json()
        replies = [candidate["message"]["content"] for candidate in answer["candidates"]]
        reply = answer["action"]
        if knows_the_way:
            (reply,) = (text for text in replies if parse_action(text) == way[step])
        result = environment.step(parse_action(reply))
        messages.append({"role": "assistant", "content": reply})
        messages.append({"role": "user", "content": result.observation})
        if result.terminated:
            break
    outcome = {
        "reward": result.reward,
        "terminated": result.terminated,
        "action": reply,
        "observation": result.observation,
    }
    closed = client.post(f"/v1/episodes/{episode}/outcome", json=outcome)
    assert closed.raise_for_status().json()["recorded"], closed.text
    return result.reward


def run_job(folder: Path, job: str, text: str) -> None:
    config = folder / f"{job}.toml"
    config.write_text(text)
    result = CliRunner().invoke(app, [job, "--config", str(config)], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def test_served_episodes_train_a_q_model_that_is_served(tmp_path: Path) -> None:
    settings = Settings(policy=SCRIPTED, q_models={"q": SCRIPTED}, episodes_dir=tmp_path / "served")
    with TestClient(create_app(settings, build=build), "http://localhost") as client:
        wins = [play(client, seed, knows_the_way=True) for seed in SEEDS]
        losses = [play(client, seed, knows_the_way=False) for seed in SEEDS]
    assert wins == [1.0] * len(SEEDS)
    assert 0.0 in losses

    trees = [str(path) for path in (tmp_path / "served").glob("trees-*.jsonl")]
    run_job(tmp_path, "label", LABEL.format(trees=json.dumps(trees), folder=tmp_path))
    labels = list(read_rows(tmp_path / "labels" / "rows.jsonl", TreeRow))
    assert len(labels) <= len(SEEDS) < sum(len(row.nodes) for row in labels)
    assert all(row.system == SYSTEM["content"] for row in labels)
    siblings: dict[tuple[str, int], list[float]] = {}
    for row in labels:
        for node, q in zip(row.nodes, row.values["q"], strict=True):
            assert q is not None
            siblings.setdefault((row.task_id, node.parent), []).append(q)
    assert any(max(q_values) > min(q_values) for q_values in siblings.values())

    save_checkpoint(
        tmp_path / "policy",
        model=policy_model(context=1024).model,
        tokenizer=renderer().tokenizer,
        manifest=Manifest(kind="policy", name="tiny", environment="served"),
    )
    run_job(tmp_path, "train-qnet", TRAIN_QNET.format(folder=tmp_path))

    again = Settings(policy=SCRIPTED, q_models={"q": str(tmp_path / "qnet" / "checkpoint")}, unlicensed=True)
    history = [{"role": m.role, "content": m.content} for m in tree_from_row(labels[0]).history(0)]
    with TestClient(create_app(again), "http://localhost") as client:
        body = {"messages": history, "candidates": [react_reply("Well.", a) for a in ACTIONS]}
        scored = client.post("/v1/score", json=body).raise_for_status().json()
    assert len({score["q_value"] for score in scored["scores"]}) > 1
