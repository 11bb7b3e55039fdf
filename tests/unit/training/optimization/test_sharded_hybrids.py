"""Hybrids under FSDP2: processes whose trees take different numbers of passes train as one process does."""

from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from qguide.qnet.engine import tree_branches
from qguide.training.data.runs import JsonlWriter, RunFolder
from qguide.training.jobs.pairs import PairsConfig, run_pairs
from qguide.training.jobs.train_dpo import run_train_dpo
from qguide.training.jobs.train_qnet import run_train_qnet
from qguide.training.policy_training.options import TrainDpoConfig
from qguide.training.q_training.options import TrainQNetConfig
from tests.support.decision_groups import candidate, groups_row
from tests.support.tiny_models import save_policy
from tests.support.trainings import FSDP_LAUNCHED, build_sharded

pytestmark = pytest.mark.alone

ADAPTERS = {"lora": {"rank": 4}, "gradient_checkpointing": True}
WORDS = ("red", "blue", "green", "grey")


@pytest.fixture(autouse=True)
def _fsdp2(monkeypatch: pytest.MonkeyPatch) -> None:
    _clear_sharding_prop_cache()
    monkeypatch.setattr(AcceleratorState, "__init__", partialmethod(build_sharded, AcceleratorState.__init__))
    for name, value in FSDP_LAUNCHED.items():
        monkeypatch.setenv(name, value)
    # A pass for each path.
    monkeypatch.setattr(tree_branches, "_LEAST_TOKENS", 1)


def uneven_groups(folder: Path) -> Path:
    """Decisions among two, three and four candidates, which are as many paths of a tree."""
    with JsonlWriter(RunFolder(folder).rows) as rows:
        for number in range(9):
            asked = WORDS[number % 2]
            said = [candidate(f"Action: {word}", (float(word == asked), 1)) for word in WORDS[: 2 + number % 3]]
            rows.write(groups_row((said, 0), task_id=f"g{number}", first_observation=f"Say {asked}."))
    return folder


def train_qnet(policy: Path, output: Path, optimization: dict[str, Any]) -> None:
    fields = {"trunk": policy, "head_width": 16, "loss_on": "last", "groups": (uneven_groups(output / "groups"),)}
    fields |= {"output": output, "optimization": optimization, "validation_fraction": 0.3}
    run_train_qnet(TrainQNetConfig.model_validate(fields))


def train_dpo(policy: Path, output: Path, optimization: dict[str, Any]) -> None:
    groups = uneven_groups(output / "groups")
    run_pairs(PairsConfig(groups=(groups,), output=output / "pairs"))
    fields = {"policy": policy, "pairs": (output / "pairs",), "validation_fraction": 0.3}
    fields |= {"output": output, "optimization": optimization}
    run_train_dpo(TrainDpoConfig.model_validate(fields))


@pytest.mark.parametrize(
    ("train", "options"),
    [
        pytest.param(train_qnet, ADAPTERS, id="train_qnet-adapters"),
        pytest.param(train_dpo, {}, id="train_dpo-whole"),
        pytest.param(train_qnet, {}, id="train_qnet-whole", marks=pytest.mark.slow),
        pytest.param(train_dpo, ADAPTERS, id="train_dpo-adapters", marks=pytest.mark.slow),
    ],
)
def test_sharded_hybrids_end_as_whole_ones(
    train: Callable[[Path, Path, dict[str, Any]], None], options: dict[str, Any], tmp_path: Path
) -> None:
    policy = save_policy(tmp_path / "policy", "lfm2")
    limits = {"lr": 1e-3, "epochs": 1, "batch_tokens": 150, "micro_batch_tokens": 100, "threads": 1, "device": "cpu"}
    ended = []
    for processes in (1, 2):
        output = tmp_path / str(processes)
        train(policy, output, limits | options | {"processes": processes})
        ended.append(load_file(output / "checkpoint" / "model.safetensors"))
    whole, sharded = ended
    assert whole.keys() == sharded.keys()
    for name, weight in whole.items():
        torch.testing.assert_close(sharded[name], weight, rtol=1e-3, atol=1e-4)
