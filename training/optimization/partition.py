"""Division of a step's micro-batches among processes, by size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

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
