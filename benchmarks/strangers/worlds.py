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


def in_turns(kinds: Sequence[tuple[str, str]], turns: int, chance: Random) -> list[tuple[tuple[str, str], int]]:
    """Every kind of task once in each turn, in another order, with a number that is not the turn's.

    So tasks kept aside are of the kinds that are recorded. Of all tasks shuffled together they would
    be what is left over: a part that is usual among the recorded ones would be rare among them.
    """
    shifts = [chance.randrange(turns) for _ in kinds]
    dealt = []
    for turn in range(turns):
        numbered = [(k, (turn + s) % turns) for k, s in zip(kinds, shifts, strict=True)]
        dealt += chance.sample(numbered, len(numbered))
    return dealt
