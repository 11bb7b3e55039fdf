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
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Generic, TypeVar

import torch
from accelerate.utils import patch_environment
from torch import Tensor, distributed, nn
from torch.distributed.distributed_c10d import Store, _get_default_store

from qguide.qnet.errors import ConfigError, ProcessLostError, QGuideError
from qguide.training.optimization.options import Optimization

Result = TypeVar("Result")

TIMEOUT: Final = timedelta(hours=12)
"""Limit for the work of one process while the others wait, such as writing a large model."""

ROLL_CALL: Final = timedelta(seconds=5)
"""Time in which the processes that are left answer after a transfer between them has failed."""


def in_processes(optimization: Optimization, work: Callable[[], Result]) -> Result:
    """Run `work` here as rank 0, and in `optimization.processes` - 1 forked processes beside it.

    Under `accelerate launch` this process is one of several already, and `work` simply runs.
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
            with _group(0, processes, meeting), _losses_named(ROLL_CALL):
                return work()
        finally:
            for child in children:
                child.join(timeout=10)
                child.kill()


def _launched(work: Callable[[], Result]) -> Result:
    """Run `work`, and leave the group of processes that a launcher has made it join."""
    try:
        with _losses_named(ROLL_CALL):
            return work()
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


@contextmanager
def _losses_named(patience: timedelta) -> Iterator[None]:
    """Name the ranks that are lost, of which the error of a transfer has only an address."""
    try:
        yield
    except RuntimeError as error:
        of_transfer = isinstance(error, distributed.DistError) or "gloo/transport" in str(error)
        if not of_transfer or not distributed.is_initialized():
            raise
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
        # It belongs to the launcher on the main machine, or is a file, and outlives the group.
        store = _get_default_store()
        # The group ends here, so that those that wait for this one find it gone; without the
        # frames, which hold what was being sent, it would live on.
        traceback.clear_frames(error.__traceback__)
        distributed.destroy_process_group()
        raise ProcessLostError(
            f"rank {rank} of {ranks}: a transfer between the processes failed; "
            f"{_lost(store, rank, ranks, patience)}; the logs of their machines say why. Start the "
            "same command again on every machine, and it goes on from the last saved state"
        ) from error


def _lost(store: Store, rank: int, ranks: int, patience: timedelta) -> str:
    others = [other for other in range(ranks) if other != rank]
    try:
        store.set(f"answer/{rank}", "")
        with suppress(distributed.DistError):  # their time is up
            store.wait([f"answer/{other}" for other in others], patience)
        lost = [str(other) for other in others if not store.check([f"answer/{other}"])]
    except distributed.DistError:
        return "the main machine, that of rank 0, does not answer"
    return f"no answer from {', '.join(lost)}" if lost else "all answer"


def _require_forkable(optimization: Optimization) -> None:
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
        distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes, timeout=TIMEOUT)
        try:
            distributed.barrier()  # a rank whose work fails at once would leave while others still connect to it
            yield
        finally:
            if distributed.is_initialized():
                distributed.destroy_process_group()


def _help(rank: int, processes: int, meeting: str, work: Callable[[], object]) -> None:
    gc.freeze()  # what is still in use there is not this process's to end, either
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with _group(rank, processes, meeting), _losses_named(timedelta(0)):
            work()
    except (QGuideError, KeyboardInterrupt):  # rank 0 has it too, and reports it
        os._exit(1)


def _end_with_parent() -> None:
    """End this process when its parent does, so that it neither waits nor holds the run's lock."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Assignment(Generic[Item]):
    """One process's part of a step.

    Attributes:
        fillers: micro-batches of other processes, whose loss must not count.
    """

    items: list[Item]
    fillers: list[Item]


def assign(
    items: Sequence[Item], *, size: Callable[[Item], int], rank: int, ranks: int, even: bool = False
) -> Assignment[Item]:
    """Part of a step that the process with this rank computes.

    Args:
        items: all micro-batches of the step, the same in all processes.
        size: an item's size; all processes get about the same total.
        even: give all processes the same number of passes, as FSDP needs it.
    """
    sizes = [size(item) for item in items]
    parts = partition(sizes, parts=ranks)
    passes = max(map(len, parts)) if even else 0
    smallest = items[min(range(len(items)), key=sizes.__getitem__)]
    mine = [items[i] for i in parts[rank]]
    return Assignment(mine, [smallest] * (passes - len(mine)))


def partition(sizes: Sequence[int], *, parts: int) -> list[list[int]]:
    """Divide items into parts of similar total size; returns each part's indices in order.

    The largest item is assigned first, each to the part that is smallest so far (Graham's LPT
    rule). The largest part has at most 4/3 of its size in the best partition.
    """
    indices: list[list[int]] = [[] for _ in range(parts)]
    loads = [0] * parts
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        least = loads.index(min(loads))
        indices[least].append(index)
        loads[least] += sizes[index]
    return [sorted(part) for part in indices]


BUCKET_ELEMENTS: Final = 16 * 1024 * 1024
"""Number of elements that are sent at once: few messages, and little memory for their copies."""


def all_reduce_sum(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its sum over all processes; they have to be of one type and device."""
    if not distributed.is_initialized():
        return
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.flatten() for tensor in bucket])
        distributed.all_reduce(flat)
        for tensor, total in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
            tensor.copy_(total.view_as(tensor))


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up the gradients of all processes; one without a gradient counts as zeros."""
    if not distributed.is_initialized():
        return
    gradients = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    all_reduce_sum(gradients)


def copy_weights_of_main(model: nn.Module) -> None:
    """Give the model the main process's weights in all processes."""
    if distributed.is_initialized():
        for tensor in (*model.parameters(), *model.buffers()):
            distributed.broadcast(tensor.detach(), src=0)


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    elements = 0
    for tensor in tensors:
        if bucket and elements + tensor.numel() > BUCKET_ELEMENTS:
            yield bucket
            bucket, elements = [], 0
        bucket.append(tensor)
        elements += tensor.numel()
    if bucket:
        yield bucket
