"""Worlds of the environments: a task's number names both the world and the task in it.

World 3 has the tasks from 3,000 on, so `--set environment.first_seed=3000` plays it. Worlds share
their words, and nothing of what is true in them.
"""

from collections.abc import Sequence
from random import Random

TASKS_PER_WORLD = 1000


def world_and_number(seed: int) -> tuple[int, int]:
    """The world of a task, and its number there."""
    return divmod(seed, TASKS_PER_WORLD)


def shared_out(keys: Sequence[str], values: Sequence[str], chance: Random) -> dict[str, str]:
    """A value for each key, drawn so that all values are used as evenly as possible."""
    dealt = [values[index % len(values)] for index in range(len(keys))]
    chance.shuffle(dealt)
    return dict(zip(keys, dealt, strict=True))
