"""Trainers whose models are named as on the hub: the weights of the folder, pinned to a commit."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import equal

from qguide.qnet.models.manifest import MANIFEST
from qguide.qnet.types import Message
from qguide.training.data.trajectories import Trajectory
from tests.support.go_groups import groups_of
from tests.support.loopback_hub import run_with_hub, running_hub
from tests.support.tiny_models import save_policy
from tests.unit.training.jobs.test_train_dpo import pairs_of

NAME = "tiny/policy"
PROGRAM = """
import json, sys
from qguide.training.jobs.sft import SftConfig, run_sft
from qguide.training.jobs.train_dpo import TrainDpoConfig, run_train_dpo
from qguide.training.jobs.train_qnet import TrainQNetConfig, run_train_qnet

JOBS = {
    "sft": (run_sft, SftConfig),
    "dpo": (run_train_dpo, TrainDpoConfig),
    "qnet": (run_train_qnet, TrainQNetConfig),
}
for all_fields in map(json.loads, sys.argv[1:]):
    for job, fields in all_fields.items():
        run, config = JOBS[job]
        run(config.model_validate(fields))
"""
JOBS = ("sft", "dpo", "qnet")


CONVERSATION = Trajectory(
    messages=(Message("user", "take mug from desk"), Message("assistant", "Action: go to desk")),
    reward=1.0,
    task_id="t",
    environment="e",
    source="expert",
)


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Path]:
    """One conversation, pairs and decision groups."""
    played = tmp_path / "played"
    played.mkdir()
    (played / "rows.jsonl").write_text(CONVERSATION.to_row().model_dump_json() + "\n")
    groups = groups_of(tmp_path / "groups", range(4))
    return {"played": played, "groups": groups, "pairs": pairs_of(tmp_path, range(4))}


def fields_of(data: dict[str, Path], model: str, output: Path, jobs: Sequence[str] = JOBS) -> str:
    """The configurations of trainers of one model, as JSON."""
    short = {"epochs": 1, "device": "cpu"}
    of_job: dict[str, dict[str, Any]] = {
        "sft": {"trajectories": [str(data["played"])], "base": model},
        "dpo": {"pairs": [str(data["pairs"])], "policy": model, "validation_fraction": 0},
        "qnet": {"groups": [str(data["groups"])], "trunk": model, "validation_fraction": 0, "head_width": 16},
    }
    return json.dumps(
        {job: of_job[job] | {"output": str(output / job), "optimization": short, "max_length": 128} for job in jobs}
    )


def trunk_of(output: Path, job: str) -> str:
    """The trunk that the checkpoint's manifest names."""
    manifest = json.loads((output / job / "checkpoint" / MANIFEST).read_text())
    named: str = manifest["trunk"]
    return named


@pytest.mark.server
def test_a_hub_name_trains_what_its_folder_trains_and_is_pinned(data: dict[str, Path], tmp_path: Path) -> None:
    folder, home = save_policy(tmp_path / "policy"), tmp_path / "home"
    named = fields_of(data, f"{NAME}@main", tmp_path / "named")
    local = fields_of(data, str(folder), tmp_path / "local")
    # The trainers differ in where they name the model, and not in where it is looked for.
    offline = fields_of(data, f"{NAME}@main", tmp_path / "offline", JOBS[:1])
    with running_hub() as hub:
        commit = hub.publish(NAME, folder)
        run_with_hub(hub, home, PROGRAM, named, local)
        assert hub.served
        hub.served.clear()
        run_with_hub(hub, home, PROGRAM, offline, offline=True)
        assert not hub.served
    assert trunk_of(tmp_path / "offline", JOBS[0]) == f"{NAME}@{commit}"
    for job in JOBS:
        assert trunk_of(tmp_path / "named", job) == f"{NAME}@{commit}"
        assert trunk_of(tmp_path / "local", job) == ""
        runs = [json.loads((tmp_path / n / job / "config.json").read_text()) for n in ("named", "local")]
        hashes = [{k: v for k, v in run.items() if k.endswith("_sha256")} for run in runs]
        assert hashes[0] == hashes[1]
        assert "" not in hashes[0].values()
        expected, found = (weights(tmp_path / place / job / "checkpoint") for place in ("local", "named"))
        assert expected.keys() == found.keys()
        assert all(equal(expected[name], found[name]) for name in expected)


def weights(checkpoint: Path) -> dict[str, Any]:
    """All tensors of a checkpoint."""
    files = sorted(checkpoint.rglob("*.safetensors"))
    assert files
    return {f"{f.name}/{name}": value for f in files for name, value in load_file(f).items()}
