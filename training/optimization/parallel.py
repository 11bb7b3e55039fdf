"""Data parallelism on one machine's CPU: forked processes that add up their gradients.

Two processes of one thread each train a small model nearly twice as fast as one of two threads,
whose matrix products are too small to share. Each holds the model and takes its share of a step's
micro-batches; after the sum all make the same move, so their weights stay equal.
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
    """The body runs as rank 0 while forked children run `work` as the other ranks.

    Both sides have to call `add_up` as often.

    Raises:
        ConfigError: torch has threads of its own, which do not survive a fork.
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


def share(items: Sequence[Item], *, size: Callable[[Item], int]) -> Sequence[Item]:
    """This process's part of the items, about as much work as any other's."""
    if not distributed.is_initialized():
        return items
    hands = deal([size(item) for item in items], hands=distributed.get_world_size())
    return [items[i] for i in hands[distributed.get_rank()]]


def deal(sizes: Sequence[int], *, hands: int) -> list[list[int]]:
    """Indices for each hand: the largest first, to whoever has least; each hand in order.

    The fullest hand has at most 4/3 of what the best deal gives it (Graham's LPT rule).
    """
    dealt: list[list[int]] = [[] for _ in range(hands)]
    loads = [0] * hands
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        least = loads.index(min(loads))
        dealt[least].append(index)
        loads[least] += sizes[index]
    return [sorted(hand) for hand in dealt]


def add_up(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its sum over all processes."""
    if not distributed.is_initialized():
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    distributed.all_reduce(flat)
    for tensor, total in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(total.view_as(tensor))


def shared_map(function: Callable[[Tensor], Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """`function` of each tensor, which keeps its shape; each process does its share of the work."""
    mine = set(share(range(len(tensors)), size=lambda i: tensors[i].numel()))
    results = [
        function(tensor) if i in mine else torch.zeros_like(tensor)
        for i, tensor in enumerate(tensors)
    ]
    add_up(results)
    return results


def _join(rank: int, processes: int, meeting: str, work: Callable[[], None]) -> None:
    _meet(rank, processes, meeting)
    work()
    distributed.destroy_process_group()


def _meet(rank: int, processes: int, meeting: str) -> None:
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)
