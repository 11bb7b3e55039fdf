"""Attempts stopped early: what is lost and what is saved when only the first ones go on.

All attempts of a group have taken their turns. Those with the highest scores go on to their end,
the others are stopped. Success is that of the best that went on, because the environment tells it.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qguide.training.choosing.table import Floats, Ints, Table

STOPPING: Final = ("random", "valid then majority", "q in group")
"""Choosers by which attempts are stopped."""


def stopped(table: Table, groups: Ints, scores: Floats) -> Floats:
    """(g, m, 2) success and characters written, if the first 1, 2, … m of a group go on."""
    chance = np.random.default_rng(0).random(groups.shape)
    order = np.lexsort((chance, -scores), axis=1)
    ranked = np.take_along_axis(groups, order, axis=1)
    success = np.maximum.accumulate(table.rewards[ranked], axis=1)
    so_far = table.written[groups].sum(axis=1, keepdims=True)
    characters = so_far + np.cumsum(table.to_come[ranked], axis=1)
    return np.stack([success, characters], axis=2).astype(np.float32)


def stopping_figures(
    tasks: Ints, among: NDArray[np.bool_], kept: dict[str, list[list[Floats]]]
) -> list[dict[str, Any]]:
    """For each number of attempts that go on: characters beside those of all, and success.

    Args:
        tasks: (g,) of each group.
        among: (g,) true for the groups that count.
        kept: of each chooser, for each training, the parts that `stopped` returned.
    """
    counts = np.bincount(tasks[among])
    weights = (1 / counts[tasks[among]])[:, None, None]
    means = {
        name: np.mean([(np.concatenate(parts)[among] * weights).sum(axis=0) for parts in own], 0)
        / np.count_nonzero(counts)
        for name, own in kept.items()
    }
    size = len(next(iter(means.values())))
    return [
        {"go_on": k + 1}
        | {
            name: {
                "success": round(float(mean[k, 0]), 4),
                "written": round(float(mean[k, 1] / mean[-1, 1]), 4),
            }
            for name, mean in means.items()
        }
        for k in range(size)
    ]
