"""Figures of a measurement: means over tasks, their intervals, and paired differences."""

from collections.abc import Mapping, Sequence
from math import exp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qguide.training.choosing.choosers import KNOWING, RULES, stopping_figures
from qguide.training.choosing.folds import Earned
from qguide.training.choosing.table import Table
from qguide.training.evaluation.statistics import bootstrap_interval, sign_flip_p_value

Column = NDArray[np.float64]


def task_means(found: Earned) -> tuple[list[int], dict[str, Column], dict[str, list[Column]]]:
    """The tasks, and each chooser's mean reward on each: of all trainings, and of single ones."""
    tasks = np.concatenate(found.tasks)
    counts = np.bincount(tasks)
    assessed = np.flatnonzero(counts)

    def means(parts: Sequence[Any]) -> Column:
        sums = np.bincount(tasks, np.concatenate(parts))
        mean: Column = sums[assessed] / counts[assessed]
        return mean

    single = {name: [means(p) for p in own.values()] for name, own in found.trained.items()}
    every = {name: means(parts) for name, parts in found.rules.items()}
    every |= {name: np.mean(own, axis=0) for name, own in single.items()}
    order = ("random", *RULES, KNOWING, *single, "oracle")
    return assessed.tolist(), {name: every[name] for name in order if name in every}, single


def figures(table: Table, found: Earned, *, kept: Sequence[bool]) -> dict[str, Any]:
    """The figures of a page, over the tasks that are kept.

    Returns:
        `choosers`: by name the reward with its interval, and of trained ones `trainings`.
        `comparisons`: of each trained chooser with a random choice, with the best rule and with
        the best model. `sections`: some choosers' rewards in each. `stopping`: see
        `stopping_figures`.
    """
    tasks, means, single = task_means(found)
    among = np.array(kept)
    means = {name: values[among] for name, values in means.items()}
    best = max((name for name in RULES if name in means), key=lambda name: means[name].mean())
    choosers = {name: _interval(values) for name, values in means.items()}
    for name, own in single.items():
        choosers[name]["trainings"] = [round(float(values[among].mean()), 4) for values in own]
    return {
        "tasks": int(among.sum()),
        "groups": int(np.isin(np.concatenate(found.tasks), np.array(tasks)[among]).sum()),
        "best_rule": best,
        "choosers": choosers,
        "comparisons": [comparison(means, name, other) for name in single for other in ("random", best, KNOWING)],
        "stopping": stopping_figures(
            np.concatenate(found.tasks),
            np.isin(np.concatenate(found.tasks), np.array(tasks)[among]),
            {name: list(own.values()) for name, own in found.kept.items()},
            table.unit,
        ),
        "sections": _sections(table, np.array(tasks)[among], means, ("random", best, KNOWING, *single, "oracle")),
    }


def _interval(values: Column) -> dict[str, Any]:
    low, high = bootstrap_interval(values.tolist(), np.random.default_rng(0))
    return {"reward": _r(values.mean()), "low": _r(low), "high": _r(high)}


def comparison(means: Mapping[str, Column], name: str, other: str) -> dict[str, Any]:
    """A chooser less another, task by task, with the interval and the p-value of the difference."""
    gains = (means[name] - means[other]).tolist()
    low, high = bootstrap_interval(gains, np.random.default_rng(0))
    return {
        "method": name,
        "other": other,
        "difference": _r(np.mean(gains)),
        "low": _r(low),
        "high": _r(high),
        "p_value": min(sign_flip_p_value(gains, np.random.default_rng(0)), flips_bound(gains)),
    }


def flips_bound(gains: Sequence[float]) -> float:
    """Hoeffding's bound of the p-value of all sign flips; drawn flips tell no p-value below their number's inverse.

    That would be too much where Holm's rule compares hundreds. The bound holds for any gains.
    """
    squares = float(np.square(gains).sum())
    return 2 * exp(-(sum(gains) ** 2) / (2 * squares)) if squares else 1.0


def _sections(
    table: Table, tasks: NDArray[np.int64], means: Mapping[str, Column], shown: Sequence[str]
) -> dict[str, dict[str, Any]]:
    section = dict(zip(table.tasks.tolist(), table.sections.tolist(), strict=True))
    of_task = np.array([section[int(task)] for task in tasks])
    found = {}
    for number, name in enumerate(table.section_names):
        own = of_task == number
        if own.any():
            found[name] = {"tasks": int(own.sum())} | {key: _r(means[key][own].mean()) for key in shown}
    return found


def _r(value: Any) -> float:
    return round(float(value), 4)
