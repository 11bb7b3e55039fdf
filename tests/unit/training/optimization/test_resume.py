"""A training that is killed at any moment ends as one that is not."""

import json
import random
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.support.alone import fresh_process
from tests.support.trainings import train

STEPS = 30


def train_whole(folder: Path, processes: int) -> None:
    """Train to the end."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("layers", nn.Linear(4, 64))  # Muon's
    model.add_module("dropout", nn.Dropout(0.1))  # draws random numbers
    model.add_module("head", nn.Linear(64, 1))
    train(
        folder,
        model=model,
        steps=[[[i % 64, i * 7 % 64], [i * 3 % 64]] for i in range(STEPS)],
        processes=processes,
        optimizer="muon",
        lr=0.01,
        average_last=0.5,
        save_every_s=1e-9,
    )


def start(folder: Path, processes: int) -> ForkServerProcess:
    process = fresh_process(train_whole, folder, processes)
    process.start()
    return process


def ends(folder: Path, processes: int) -> bool:
    """True if a training comes to its end without an error."""
    process = start(folder, processes)
    process.join()
    return process.exitcode == 0


def end_of(folder: Path) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Saved weights, and the loss of every step."""
    state = folder / f"state-{STEPS:06d}"
    weights = load_file(state / "model.safetensors") | {
        f"mean of {name}": mean for name, mean in load_file(state / "weight_average.safetensors").items()
    }
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    return weights, [row["loss"] for row in rows]


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_thrice_at_random_moments_it_ends_bit_equal(tmp_path: Path, processes: int) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert ends(whole, processes)
    rng = random.Random(processes)
    for kill in range(1, 4):
        process = start(broken, processes)
        # Wait until it has trained on from where the last one was killed; then at any moment.
        while _saved_step(broken) < kill * STEPS // 5:
            assert process.is_alive()
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.02))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert _saved_step(broken) < STEPS
    assert ends(broken, processes)
    expected, ended = end_of(whole), end_of(broken)
    assert expected[1] == ended[1]
    assert expected[0].keys() == ended[0].keys()
    assert all(torch.equal(weight, ended[0][name]) for name, weight in expected[0].items())
    assert [folder.name for folder in broken.glob("state-*")] == [f"state-{STEPS:06d}"]


def _saved_step(folder: Path) -> int:
    names = [path.name for path in folder.glob("state-*[0-9]")]
    return max((int(name.removeprefix("state-")) for name in names), default=0)
