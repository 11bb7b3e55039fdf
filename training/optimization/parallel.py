"""Data parallelism on one machine's CPU: forked processes that sum their gradients.

Two processes with one thread each train a small model nearly twice as fast as one process with two
threads, because its matrix products are too small to split. Each process has the model and computes
its part of a step's micro-batches. After the sum all make the same update, so their weights stay
equal.
"""

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, distributed

from qnet.errors import ConfigError

Item = TypeVar("Item")


@contextmanager
def data_parallel(processes: int, work: Callable[[], None]) -> Iterator[None]:
    """Run the block as rank 0 while forked children run `work` as the other ranks.

    All of them have to call `all_reduce_sum` equally often.

    Raises:
        ConfigError: torch uses several threads, which do not survive a fork.
    """
    if processes == 1:
        yield
        return
    if torch.get_num_threads() != 1:
        raise ConfigError(
            f"processes is {processes} and torch has {torch.get_num_threads()} threads; "
            "set optimization.threads to 1 for more than one process"
        )
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder) / 'ranks'}"
        children = [
            fork.Process(target=_join, args=(rank, processes, meeting, work), daemon=True)
            for rank in range(1, processes)
        ]
        for child in children:
            child.start()
        try:
            _meet(0, processes, meeting)
            yield
        finally:
            if distributed.is_initialized():
                distributed.destroy_process_group()
            for child in children:
                child.join(timeout=10)
                child.kill()


def assign(items: Sequence[Item], *, size: Callable[[Item], int]) -> Sequence[Item]:
    """This process's part of the items; all processes get about the same amount of work."""
    if not distributed.is_initialized():
        return items
    parts = partition([size(item) for item in items], parts=distributed.get_world_size())
    return [items[i] for i in parts[distributed.get_rank()]]


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


def all_reduce_sum(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its sum over all processes."""
    if not distributed.is_initialized():
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    distributed.all_reduce(flat)
    for tensor, total in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(total.view_as(tensor))


def shared_map(function: Callable[[Tensor], Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Map tensors by a function that keeps their shape, with the work divided among processes."""
    mine = set(assign(range(len(tensors)), size=lambda i: tensors[i].numel()))
    results = [
        function(tensor) if i in mine else torch.zeros_like(tensor)
        for i, tensor in enumerate(tensors)
    ]
    all_reduce_sum(results)
    return results


def _join(rank: int, processes: int, meeting: str, work: Callable[[], None]) -> None:
    _meet(rank, processes, meeting)
    work()
    distributed.destroy_process_group()


def _meet(rank: int, processes: int, meeting: str) -> None:
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)
