"""A launcher starts the processes of a job; one of them writes."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.run import main as launch
from typer.testing import CliRunner

from qguide.cli import app
from qguide.qnet.types import Message
from qguide.training.architecture import Architecture
from qguide.training.data.runs import JsonlWriter, open_run
from qguide.training.data.trajectories import Trajectory
from tests.support.alone import run_forked
from tests.support.serving import ROOT

TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch finds fewer than two GPUs")
CONFIG = """
trajectories = ["{trajectories}"]
output = "{output}"

[architecture]
vocab_size = 320
hidden_size = 32
intermediate_size = 64
layers = 2
heads = 2
context = 128

[optimization]
lr = 5e-3
epochs = 2
batch_tokens = 90
micro_batch_tokens = 50
device = "{device}"
threads = 1
"""


@pytest.mark.slow  # `test_launched_processes.py` trains in the processes of a launcher
@pytest.mark.parametrize("device", ["cpu", pytest.param("auto", marks=TWO_GPUS)])
def test_launched_processes_train_one_model_and_report_once(tmp_path: Path, device: str) -> None:
    with open_run(tmp_path / "said", Architecture()) as run, JsonlWriter(run.rows) as rows:
        for number in range(12):
            color = ("red", "blue")[number % 2]
            said = (Message("user", f"Say {color}."), Message("assistant", f"Action: {color}"))
            rows.write(
                Trajectory(
                    task_id=f"t{number}", kind="say", environment="echo", messages=said, reward=1.0, source="expert"
                ).to_row()
            )
    weights = []
    for name, run_job in (("one", _here), ("two", _in_two_processes)):
        output = tmp_path / name
        config = tmp_path / f"{name}.toml"
        text = CONFIG.format(trajectories=tmp_path / "said", output=output, device=device)
        config.write_text(text)
        assert run_job("sft", "--config", str(config)).count("episodes: 12") == 1
        weights.append(load_file(output / "checkpoint" / "model.safetensors"))
    for tensor_name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][tensor_name], weight, rtol=1e-4, atol=1e-5)


def _here(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def _in_two_processes(*arguments: str) -> str:
    launcher = ["--standalone", "--nproc-per-node", "2", "-m", "qguide", *arguments]
    code, output = run_forked(launch, launcher, cwd=ROOT, variables={"OMP_NUM_THREADS": "1"})
    assert code == 0, output
    return output
