"""Processes of one training: forked by the job, or started by `accelerate launch`.

Forked ones train on the CPU only: CUDA does not survive a fork.
Every process runs the same code over the same data. The loop divides each step's micro-batches
among them, and only the main process, rank 0, writes files. Two processes with one thread each
train a small model nearly twice as fast as one process with two threads, because its matrix
products are too small to split.
"""

import gc
import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeVar

import torch
from accelerate.utils import patch_environment
from torch import distributed

from qguide.qnet.errors import ConfigError, QGuideError
from qguide.training.optimization.options import Optimization

Result = TypeVar("Result")

TIMEOUT: Final = timedelta(hours=12)
"""Limit for the work of one process while the others wait, such as writing a large model."""


def in_processes(optimization: Optimization, work: Callable[[], Result]) -> Result:
    """Run `work` here as rank 0, and in `optimization.processes` - 1 forked processes beside it.

    Under `accelerate launch` this process is one of several already, and `work` simply runs.

    Returns:
        The result in this process.
    """
    if optimization.threads:
        torch.set_num_threads(optimization.threads)
    processes = optimization.processes
    if processes == 1:
        return _launched(work)
    _require_forkable(optimization)
    # A group that an earlier training left to the collector ends here, where its threads are: its
    # end in a forked process would wait for them for ever.
    gc.collect()
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder) / 'ranks'}"
        children = [
            fork.Process(target=_help, args=(rank, processes, meeting, work), daemon=True)
            for rank in range(1, processes)
        ]
        for child in children:
            child.start()
        try:
            with _group(0, processes, meeting):
                return work()
        finally:
            for child in children:
                child.join(timeout=10)
                child.kill()


def _launched(work: Callable[[], Result]) -> Result:
    """Run `work`, and leave the group of processes that a launcher has made it join."""
    try:
        return work()
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _require_forkable(optimization: Optimization) -> None:
    """Refuse processes that do not survive a fork."""
    processes = optimization.processes
    if (launched := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise ConfigError(
            f"processes is {processes}, but {launched} processes were launched already; set "
            "optimization.processes to 1 under a launcher"
        )
    if torch.get_num_threads() != 1:
        raise ConfigError(
            f"processes is {processes} and torch has {torch.get_num_threads()} threads; "
            "set optimization.threads to 1 for more than one process"
        )
    # Unlike `is_available`, this asks the driver's library and leaves CUDA alone.
    if optimization.device != "cpu" and (gpus := torch.cuda.device_count()):
        raise ConfigError(
            f"processes is {processes}, and device {optimization.device!r} takes a GPU ({gpus} "
            "found), which does not survive a fork; set optimization.processes to 1 and run "
            f"`accelerate launch --num_processes {min(processes, gpus)} -m qguide ...`, or set "
            "optimization.device to 'cpu'"
        )


@contextmanager
def _group(rank: int, processes: int, meeting: str) -> Iterator[None]:
    """Make this process one rank of a group, as accelerate finds it in the environment."""
    names = {"rank": rank, "local_rank": rank, "world_size": processes}
    names |= {"local_world_size": processes, "omp_num_threads": torch.get_num_threads()}
    with patch_environment(**names):
        distributed.init_process_group(
            "gloo", init_method=meeting, rank=rank, world_size=processes, timeout=TIMEOUT
        )
        try:
            yield
        finally:
            distributed.destroy_process_group()


def _help(rank: int, processes: int, meeting: str, work: Callable[[], object]) -> None:
    """Run `work` in a forked process."""
    gc.freeze()  # what is still in use there is not this process's to end, either
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with _group(rank, processes, meeting):
            work()
    except (QGuideError, KeyboardInterrupt):  # rank 0 has it too, and reports it
        os._exit(1)


def _end_with_parent() -> None:
    """End this process when its parent does, so that it neither waits nor holds the run's lock."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
