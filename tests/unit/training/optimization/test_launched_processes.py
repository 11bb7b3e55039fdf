"""Processes that a launcher starts on several machines, here all on this one, over gloo."""

import os
import signal
import time
from functools import partialmethod
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file, save_file
from torch import nn

from qguide.qnet.errors import ConfigError, ProcessLostError
from qguide.qnet.models.qnet import QNet
from qguide.training.optimization.accelerator import awaits_weights
from qguide.training.optimization.launch import in_processes
from qguide.training.optimization.objective import Loss
from qguide.training.optimization.options import Optimization
from qguide.training.optimization.trainer import Loop
from tests.support.alone import fresh_process
from tests.support.serving import free_port
from tests.support.tiny_models import save_policy
from tests.support.trainings import FSDP_LAUNCHED, Fit, build_sharded, train

RANKS, STEPS = 4, 24


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


def train_sharded(rank: int, ranks: int, port: int, trunk: Path, folder: Path) -> None:
    """Load a trunk and train a QNet on it as one of so many processes, which shard it if there are several."""
    if ranks > 1:
        os.environ |= FSDP_LAUNCHED | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        AcceleratorState.__init__ = partialmethod(build_sharded, AcceleratorState.__init__)
    torch.manual_seed(0)
    optimization = Optimization(lr=1e-2, device="cpu", threads=1)
    model = QNet.from_trunk(trunk, empty=awaits_weights(), head_width=16)
    stored = load_file(trunk / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(model.trunk.get_input_embeddings().weight, stored) == (rank == 0)

    def loss(tokens: list[int]) -> Loss:
        q_BT = model.head(model.hidden_states(torch.tensor([tokens])))
        return Loss((q_BT - 0.5).square().sum(), float(len(tokens)))

    def work() -> None:
        loop = Loop(Fit(model, [[[1, 2, 3], [4, 5]], [[6, 7, 8]]], loss), optimization, output=folder)
        loop.run()
        loop.write(lambda whole: save_file(whole.state_dict(), folder / "end.safetensors"))

    in_processes(optimization, work)


def test_only_the_main_process_reads_weights_that_are_sharded(tmp_path: Path) -> None:
    trunk, port = save_policy(tmp_path / "trunk"), free_port()
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        started = [fresh_process(train_sharded, rank, ranks, port, trunk, folder) for rank in range(ranks)]
        for process in started:
            process.start()
        for process in started:
            process.join()
        assert [process.exitcode for process in started] == [0] * ranks
    whole, sharded = (load_file(tmp_path / str(ranks) / "end.safetensors") for ranks in (1, 2))
    assert whole.keys() == sharded.keys()
    for name, weight in whole.items():
        torch.testing.assert_close(sharded[name], weight, rtol=1e-4, atol=1e-5)
