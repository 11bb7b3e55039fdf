"""Division of a step's micro-batches among processes, by size."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import torch
from torch import Tensor, distributed, nn

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Assignment(Generic[Item]):
    """One process's part of a step.

    Attributes:
        items: micro-batches to compute, in order.
        fillers: micro-batches of other processes, whose loss must not count.
    """

    items: list[Item]
    fillers: list[Item]


def assign(
    items: Sequence[Item],
    *,
    size: Callable[[Item], int],
    rank: int,
    ranks: int,
    even: bool = False,
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
