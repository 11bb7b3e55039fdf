"""Trainers whose models are named as on the hub: the weights of the folder, pinned to a commit."""

import json
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
from qguide.training.policy_training.options import SftConfig
from qguide.training.jobs.sft import run_sft
from qguide.training.policy_training.options import TrainDpoConfig
from qguide.training.jobs.train_dpo import run_train_dpo
from qguide.training.q_training.options import TrainQNetConfig
from qguide.training.jobs.train_qnet import run_train_qnet

JOBS = {
    "sft": (run_sft, SftConfig),
    "dpo": (run_train_dpo, TrainDpoConfig),
    "qnet": (run_train_qnet, TrainQNetConfig),
}
run, config = JOBS[sys.argv[1]]
for fields in map(json.loads, sys.argv[2:]):
    run(config.model_validate(fields))
"""


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


def fields_of(data: dict[str, Path], job: str, model: str, output: Path) -> str:
    """The configuration of a trainer of the model, as JSON."""
    short = {"epochs": 1, "device": "cpu"}
    of_job: dict[str, dict[str, Any]] = {
        "sft": {"trajectories": [str(data["played"])], "base": model},
        "dpo": {"pairs": [str(data["pairs"])], "policy": model, "validation_fraction": 0},
        "qnet": {"groups": [str(data["groups"])], "trunk": model, "validation_fraction": 0, "head_width": 16},
    }
    return json.dumps(of_job[job] | {"output": str(output), "optimization": short, "max_length": 128})


def trunk_of(output: Path) -> str:
    """The trunk that the checkpoint's manifest names."""
    manifest = json.loads((output / "checkpoint" / MANIFEST).read_text())
    named: str = manifest["trunk"]
    return named


@pytest.mark.server
@pytest.mark.parametrize("job", ["qnet", *(pytest.param(job, marks=pytest.mark.slow) for job in ("sft", "dpo"))])
def test_a_hub_name_trains_what_its_folder_trains_and_is_pinned(
    data: dict[str, Path], tmp_path: Path, job: str
) -> None:
    folder = save_policy(tmp_path / "policy")
    outputs = [tmp_path / "named", tmp_path / "local"]
    with running_hub() as hub:
        commit = hub.publish(NAME, folder)
        fields = (fields_of(data, job, *one) for one in zip((f"{NAME}@main", str(folder)), outputs, strict=True))
        run_with_hub(hub, tmp_path / "home", PROGRAM, job, *fields)
        assert hub.served
    assert [trunk_of(output) for output in outputs] == [f"{NAME}@{commit}", ""]
    runs = [json.loads((output / "config.json").read_text()) for output in outputs]
    hashes = [{k: v for k, v in run.items() if k.endswith("_sha256")} for run in runs]
    assert hashes[0] == hashes[1]
    assert "" not in hashes[0].values()
    found, expected = (weights(output / "checkpoint") for output in outputs)
    assert expected.keys() == found.keys()
    assert all(equal(expected[name], found[name]) for name in expected)


def weights(checkpoint: Path) -> dict[str, Any]:
    """All tensors of a checkpoint."""
    files = sorted(checkpoint.rglob("*.safetensors"))
    assert files
    return {f"{f.name}/{name}": value for f in files for name, value in load_file(f).items()}
