"""Recorded episodes with tools → import → sft, label → train-qnet → a Q model that is served."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from qguide.cli import app
from qguide.qnet.models.checkpoint import load_qnet, save_checkpoint
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.records import TreeRow
from qguide.server.app import create_app
from qguide.server.settings.settings import SCRIPTED, Settings
from qguide.training.data.records import labelled_tree
from qguide.training.data.runs import read_rows
from qguide.training.optimization.options import ReadAt
from qguide.training.optimization.packed_trees import pack_tree
from qguide.training.q_training.validation import q_of_tree
from tests.support.labels import paths_of
from tests.support.tiny_models import policy_model, renderer

DOORS = ("red", "blue", "green")
TASKS = 10
TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + (m['content'] or '') }}"
    "{% for c in m['tool_calls'] or [] %}{{ 'call ' + c['function']['name'] + ' ' }}"
    "{{ c['function']['arguments'] | tojson }}{% endfor %}{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Prints calls and results of tools in its own way, unlike the text of a message."""


def calling(name: str, **arguments: str) -> dict[str, Any]:
    """A reply that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call-{name}", "type": "function", "function": function}],
    }


def result(name: str, text: str) -> dict[str, Any]:
    """Its result."""
    return {"role": "tool", "tool_call_id": f"call-{name}", "content": text}


def state(task: int) -> list[dict[str, Any]]:
    """The messages before a door is opened."""
    return [
        {"role": "system", "content": "You open doors."},
        {"role": "user", "content": f"House {task}. Find the {DOORS[task % 3]} door."},
        calling("look"),
        result("look", "You see the doors " + ", ".join(DOORS)),
    ]


def episodes() -> list[dict[str, Any]]:
    """Thirty episodes, three of each task, which open different doors."""
    return [
        {
            "messages": [
                *state(task),
                calling("open", door=door),
                result("open", "It is open." if door == DOORS[task % 3] else "It is locked."),
            ],
            "reward": float(door == DOORS[task % 3]),
            "task_id": f"house-{task}",
        }
        for task in range(TASKS)
        for door in DOORS
    ]


def run(*command: str) -> None:
    shown = CliRunner().invoke(app, list(command), catch_exceptions=False)
    assert shown.exit_code == 0, shown.output


def run_job(folder: Path, job: str, **fields: object) -> None:
    config = folder / f"{job}.toml"
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in fields.items()]
    config.write_text("".join(lines) + "[optimization]\nlr = 0.003\nepochs = 1\n" * (job != "label"))
    run(job, "--config", str(config))


def save_policy(folder: Path) -> None:
    """A tiny policy whose template knows tools."""
    tokenizer = copy.deepcopy(renderer().tokenizer)
    tokenizer.chat_template = TEMPLATE
    save_checkpoint(
        folder,
        model=policy_model(context=1024).model,
        tokenizer=tokenizer,
        manifest=Manifest(kind="policy", name="tiny"),
    )


def served_q(folder: Path, task: int, *, observed: bool) -> list[float]:
    """Q of opening each door, over HTTP."""
    candidates = [calling("open", door=door) for door in DOORS]
    for door, candidate in zip(DOORS, candidates, strict=True):
        if observed:
            said = "It is open." if door == DOORS[task % 3] else "It is locked."
            candidate["observation"] = [result("open", said)]
    settings = Settings(policy=SCRIPTED, q_models={"q": str(folder)})
    with TestClient(create_app(settings), "http://localhost") as client:
        body = {"messages": state(task), "candidates": candidates}
        scored = client.post("/v1/score", json=body).raise_for_status().json()
    return [score["q_value"] for score in scored["scores"]]


def trained_q(folder: Path, row: TreeRow, read_at: ReadAt) -> list[float]:
    """Q of the last actions of one tree, at the tokens on which the Q model was trained."""
    loaded = load_qnet(folder)
    (tree,) = pack_tree(
        loaded.renderer,
        labelled_tree(row),
        loss_on="last",
        min_label_margin=0.01,
        max_length=1000,
        max_tokens=4000,
        read_at=read_at,
    )
    with torch.no_grad():
        q_T = q_of_tree(loaded.model, tree)
    labelled = [place for place, weight in enumerate(tree.weight) if weight]
    return [float(q_T[place]) for place in labelled[-len(DOORS) :]]


@pytest.mark.parametrize("read_at", ["action", "observation"])
def test_recorded_episodes_train_a_q_model_that_is_served(tmp_path: Path, read_at: ReadAt) -> None:
    source = tmp_path / "episodes.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in episodes()))
    run("import", str(source), "--output", str(tmp_path / "imported"))
    report = json.loads((tmp_path / "imported" / "report.json").read_text())
    assert (report["episodes"], report["tasks"], report["branching_states"]) == (30, 10, 10)
    assert report["differing_groups"] == 10

    save_policy(tmp_path / "base")
    imported = str(tmp_path / "imported" / "trajectories")
    run_job(
        tmp_path,
        "sft",
        trajectories=[imported],
        base=str(tmp_path / "base"),
        environment="imported",
        output=str(tmp_path / "policy"),
    )
    run_job(tmp_path, "label", trees=[str(tmp_path / "imported" / "trees")], output=str(tmp_path / "labels"))
    run_job(
        tmp_path,
        "train-qnet",
        labels=[str(tmp_path / "labels")],
        trunk=str(tmp_path / "policy" / "checkpoint"),
        environment="imported",
        output=str(tmp_path / "qnet"),
        head_width=16,
        read_at=read_at,
        loss_on="last",
    )
    rows = read_rows(tmp_path / "labels" / "rows.jsonl", TreeRow)
    [row] = [row for row in rows if row.task_id == "house-4"]
    assert [path.q_values[-1] for path in paths_of(row)] == [0.0, 1.0, 0.0]
    checkpoint = tmp_path / "qnet" / "checkpoint"
    served = served_q(checkpoint, 4, observed=read_at == "observation")
    assert served == pytest.approx(trained_q(checkpoint, row, read_at), abs=1e-5)
    assert len(set(served)) == len(DOORS)
