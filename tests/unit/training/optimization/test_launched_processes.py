"""Processes that a launcher starts on several machines, here all on this one, over gloo."""

import os
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from qguide.qnet.errors import ConfigError, ProcessLostError
from tests.support.alone import fresh_process
from tests.support.serving import free_port
from tests.support.trainings import train

RANKS, STEPS = 4, 40


def train_as(rank: int, port: int, folder: Path) -> None:
    """Train to the end as one of the processes, or write why not to a file."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.1), nn.Linear(64, 1))
    steps = [[[i % 64, i * 7 % 64], [i * 3 % 64], [i * 5 % 64]] for i in range(STEPS)]
    try:
        train(folder, model=model, steps=steps, lr=0.01, save_every_s=1e-9)
    except (ConfigError, ProcessLostError) as error:
        (folder / f"error-{rank}").write_text(str(error))


def launch(*folders: Path) -> list[ForkServerProcess]:
    port = free_port()
    processes = [fresh_process(train_as, rank, port, folders[rank % len(folders)]) for rank in range(RANKS)]
    for process in processes:
        process.start()
    return processes


def end_of(folder: Path, processes: list[ForkServerProcess]) -> dict[str, torch.Tensor]:
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * RANKS
    return load_file(folder / f"state-{STEPS:06d}" / "model.safetensors")


def test_a_lost_process_is_named_and_the_training_resumes_bit_equal(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = end_of(whole, launch(whole))

    processes = launch(broken)
    while not list(broken.glob("state-*1[0-9]")):
        assert all(process.is_alive() for process in processes)
        time.sleep(0.001)
    processes[2].kill()
    for process in processes:
        process.join()
    assert processes[2].exitcode == -signal.SIGKILL
    # Ranks 1 and 3, which were sending to rank 2, tell rank 0, which was not.
    said = (broken / "error-0").read_text()
    assert said.startswith("rank 0 of 4: a transfer between the processes failed")
    assert "; no answer from 2; the logs" in said
    assert "start the same command again" in said.lower()

    ended = end_of(broken, launch(broken))
    assert ended.keys() == expected.keys()
    assert all(torch.equal(weight, ended[name]) for name, weight in expected.items())


def test_machines_that_do_not_share_the_output_folder_are_refused(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for process in launch(ours, theirs):
        process.join()
    said = (theirs / "error-1").read_text()
    assert "rank 1 does not find" in said
    assert "name an output folder that all machines share" in said
