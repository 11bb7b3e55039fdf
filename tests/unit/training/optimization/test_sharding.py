"""FSDP2: weights are sharded over processes, and a training ends as it does without.

Accelerate shards on accelerators only. On the CPU these tests tell it to shard all the same, so
that FSDP2 itself runs, over gloo.
"""

import json
import os
from collections.abc import Callable, Sequence
from functools import partialmethod
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from qguide.qnet.errors import ConfigError
from qguide.qnet.models.qnet import QNet
from qguide.training.optimization.launch import in_processes
from qguide.training.optimization.objective import Loss, Objective
from qguide.training.optimization.options import Optimization
from qguide.training.optimization.trainer import Loop
from qguide.training.optimization.weight_average import FIGURES
from tests.support.tiny_models import q_model
from tests.support.trainings import FSDP_LAUNCHED, Fit, build_sharded

pytestmark = pytest.mark.alone

STEPS = [[[1, 2, 3, 4], [5, 6], [7, 8, 9]], [[2, 4, 6]]] * 3


@pytest.fixture
def _fsdp2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes on the CPU shard their model, as processes on GPUs do under `accelerate launch`."""
    # A test before this one has filled the cache with the shapes of rank 0's shards, and a forked
    # rank 1 would take them for its own.
    _clear_sharding_prop_cache()
    monkeypatch.setattr(AcceleratorState, "__init__", partialmethod(build_sharded, AcceleratorState.__init__))
    for name, value in FSDP_LAUNCHED.items():
        monkeypatch.setenv(name, value)


def loss_of(model: QNet) -> Callable[[list[int]], Loss]:
    def loss(tokens: list[int]) -> Loss:
        hidden_BTD = model.hidden_states(torch.tensor([tokens]))  # not through the model's forward
        q_BT = model.head(hidden_BTD)
        return Loss((q_BT - 0.5).square().sum(), float(len(tokens)))

    return loss


class FitByRows(Fit):
    """A training that makes a pass of each row, as those of packed trees do."""

    one_pass = False

    def loss(self, micro_batch: Sequence[int]) -> Loss:
        return Objective.loss(self, micro_batch)


def train(
    folder: Path, processes: int, fit: type[Fit] = Fit, *, architecture: str = "llama", **options: object
) -> tuple[dict[str, torch.Tensor], int]:
    """Weights of a trained QNet, and the number of its sharded weights during training."""
    folder.mkdir(exist_ok=True)
    fields: dict[str, object] = {"lr": 1e-2, "device": "cpu", "threads": 1, "average_last": 0.5}
    optimization = Optimization.model_validate(fields | {"processes": processes, "save_every_s": 1e-9} | options)
    model = q_model(architecture).model
    assert isinstance(model, QNet)

    def validate() -> dict[str, float]:
        with torch.no_grad():
            return {"spearman": float(model(torch.tensor([[1, 2, 3]])).sum())}

    def work() -> tuple[dict[str, torch.Tensor], int]:
        objective = fit(model, STEPS, loss_of(model), validate=validate)
        objective.epochs, objective.keep = [STEPS[:2], STEPS[2:4], STEPS[4:]], "spearman"
        loop = Loop(objective, optimization, output=folder)
        figures = loop.run()
        sharded = sum(isinstance(parameter, DTensor) for parameter in model.parameters())
        assert figures == json.loads((folder / FIGURES).read_text())
        return loop.write(lambda whole: dict(whole.state_dict())), sharded

    return in_processes(optimization, work)


@pytest.mark.usefixtures("_fsdp2")
@pytest.mark.parametrize("architecture", ["llama", pytest.param("lfm2", marks=pytest.mark.slow)])
def test_sharded_weights_end_as_whole_ones(architecture: str, tmp_path: Path) -> None:
    whole, unsharded = train(tmp_path / "whole", 1, architecture=architecture)
    ended, sharded = train(tmp_path / "sharded", 2, architecture=architecture)
    assert (unsharded, sharded) == (0, len(whole))
    assert ended.keys() == whole.keys()
    for name, weight in whole.items():
        torch.testing.assert_close(ended[name], weight, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_fsdp2")
def test_processes_make_equally_many_passes_of_rows(tmp_path: Path) -> None:
    whole, _ = train(tmp_path / "whole", 1, FitByRows)
    ended, _ = train(tmp_path / "sharded", 2, FitByRows)
    for name, weight in whole.items():
        torch.testing.assert_close(ended[name], weight, rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # `test_resume.py` and `test_launched_processes.py` resume without shards
@pytest.mark.usefixtures("_fsdp2")
def test_stopped_and_resumed_uneven_shards_end_bit_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Loop._save

    def stop_after_three(loop: Loop[QNet]) -> None:
        save(loop)
        if loop.step == 3:
            raise ConfigError("stopped")

    def end_of(folder: Path) -> dict[str, torch.Tensor]:
        _clear_sharding_prop_cache()
        torch.manual_seed(0)
        return train(folder, 2)[0]

    whole = end_of(tmp_path / "whole")
    assert len(whole["trunk.embed_tokens.weight"]) % 2 == len(whole["head.out.weight"]) % 2 == 1
    with monkeypatch.context() as stopping:
        stopping.setattr(Loop, "_save", stop_after_three)
        with pytest.raises(ConfigError, match="stopped"):
            end_of(tmp_path / "broken")
    assert [path.name for path in (tmp_path / "broken").glob("state-*")] == ["state-000003"]
    ended = end_of(tmp_path / "broken")
    assert ended.keys() == whole.keys()
    assert all(torch.equal(ended[name], weight) for name, weight in whole.items())


@pytest.mark.slow  # `test_sharded_hybrids.py` trains adapters, too
@pytest.mark.usefixtures("_fsdp2")
def test_sharded_adapters_are_merged_as_whole_ones(tmp_path: Path) -> None:
    ends = []
    for processes in (1, 2):
        torch.manual_seed(0)
        end, _ = train(tmp_path / str(processes), processes, lora={"rank": 4})
        ends.append(end)
    assert ends[0].keys() == ends[1].keys() == q_model("llama").model.state_dict().keys()
    for name, weight in ends[0].items():
        torch.testing.assert_close(ends[1][name], weight, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_fsdp2")
def test_muon_does_not_update_shards(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"optimization\.optimizer to 'adamw'"):
        train(tmp_path, 2, optimizer="muon")


@pytest.mark.usefixtures("_fsdp2")
def test_frozen_weights_of_another_type_are_not_sharded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"frozen_dtype is 'bfloat16'.*'float32'"):
        train(tmp_path, 2, lora={"rank": 2}, frozen_dtype="bfloat16")


@pytest.mark.usefixtures("_fsdp2")
def test_the_first_fsdp_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSDP_VERSION", "1")
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "false")
    with pytest.raises(ConfigError, match="--fsdp_version 2"):
        train(tmp_path, 2)
    assert "RANK" not in os.environ
