"""Columns of numbers from recorded episodes; their texts are not kept."""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Final, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from qguide.qnet.records import OfferRow, ThresholdActionRow
from qguide.qnet.types import ActionOutcome, ThresholdAction

CONTROL: Final = "one candidate"
"""Arm of episodes in which one candidate was drawn at every step, and its Q was not even read."""

NO_Q_MODEL: Final = "no Q model"
"""Arm of episodes in which several candidates were drawn, and no Q model was there to choose."""

_NONE: Final = "none"
"""Name, before its version, of the Q model that guides nothing."""

FALLBACK: Final = "fallback"
"""Reason of a step at which no Q chose: outside the Q model's domain, or without its answer."""

OF: Final = " of "
"""Between the name of what a group has learned and the group."""

SERVED: Final = "served"
"""Environment of tasks of which no tree was found."""

Column = NDArray[np.float64]
ACTIONS: Final[tuple[ThresholdAction, ...]] = get_args(ThresholdAction)
OUTCOMES: Final[tuple[ActionOutcome, ...]] = get_args(ActionOutcome)


Name = TypeVar("Name")


class Stratum(NamedTuple):
    """Episodes that were guided with one probability, so that chance alone decided which of them were.

    Attributes:
        share: that probability; 0 where no server that learned decided.
    """

    group: str
    trial: int
    share: float


@dataclass(frozen=True, slots=True)
class Columns:
    """All episodes and steps; unknown numbers are NaN.

    Attributes:
        arms, environments, strata, q_models, shadows: names by the numbers in the columns.
        episodes: columns `task`, `arm`, `environment`, `stratum`, `outcome`, `steps`, `tokens`, `ms`,
            `changed`, the number of steps at which Q chose another candidate than the first, and
            `shadow`, NaN without one.
        steps: columns `episode`, `depth`, `draws`, `distinct`, `q_model`, `q_taken` (of the action
            in the episode), `q_gain` (of the chosen candidate over the first), `is_first` and
            `is_most_frequent` (of the chosen candidate, NaN without a choice by Q), `is_vote`
            (the same, and of equally frequent ones the first), `fallback`, `outside` (the Q model's
            domain, NaN where that was not asked), `followed`, `tokens`, `ms`, and `left_out`, the
            tokens that a window of the history left out.
        actions: columns of the actions below a threshold: `episode`, `q_model`, `action` and
            `outcome` as indices of `ACTIONS` and `OUTCOMES`, `q_before`, `q_after`, `tokens`, and
            `chosen`, whether the chosen candidate is one that the action drew.
    """

    arms: tuple[str, ...]
    environments: tuple[str, ...]
    strata: tuple[Stratum, ...]
    q_models: tuple[str, ...]
    shadows: tuple[str, ...]
    episodes: Mapping[str, Column]
    steps: Mapping[str, Column]
    actions: Mapping[str, Column]
    same_tasks: bool = False


class _Growing:
    """Columns that rows are added to, all with the same names; without a row there is no column."""

    def __init__(self) -> None:
        self._columns: dict[str, array[float]] = defaultdict(lambda: array("d"))

    def add(self, row: Mapping[str, float]) -> None:
        for name, value in row.items():
            self._columns[name].append(value)

    def frozen(self) -> dict[str, Column]:
        return {name: np.frombuffer(one, dtype=np.float64) for name, one in self._columns.items()}


def read_columns(
    episodes: Iterable[Sequence[OfferRow]], environments: Callable[[], Mapping[str, str]], *, same_tasks: bool = False
) -> Columns:
    """Columns of all episodes.

    Args:
        environments: environment of each task. It is called last: a server that records meanwhile
            writes what tells it before the episode's offers.
        same_tasks: the agent gets no other tasks than these, so each episode is evidence of its own.
    """
    tasks, arms, places, q_models, shadows = (dict[str, int]() for _ in range(5))
    strata: dict[Stratum, int] = {}
    of_episodes, of_steps, of_actions = _Growing(), _Growing(), _Growing()
    for number, rows in enumerate(episodes):
        steps = [_step(row) for row in rows]
        for row, step in zip(rows, steps, strict=True):
            place = {"episode": number, "q_model": _number_of(row.q_model, q_models)}
            of_steps.add(step | place)
            for taken in row.actions:
                of_actions.add(_action(taken, row) | place)
        task = _number_of(rows[0].task_id, tasks)
        of_episodes.add(
            {
                "task": task,
                "unit": number if same_tasks else task,
                "arm": _number_of(_arm(rows), arms),
                "stratum": _number_of(Stratum(rows[0].group, rows[0].trial, rows[0].trial_share), strata),
                "outcome": rows[-1].outcome_reward,
                "steps": len(rows),
                "tokens": sum(step["tokens"] for step in steps),
                "ms": sum(step["ms"] for step in steps),
                "changed": sum(step["is_first"] == 0 for step in steps),
                "shadow": _number_of(rows[-1].shadow, shadows) if rows[-1].shadow else nan,
            }
        )
    found = of_episodes.frozen()
    if found:
        labels = environments()
        of_task = [_number_of(labels.get(task, SERVED), places) for task in tasks]
        found["environment"] = np.array(of_task, dtype=np.float64)[found["task"].astype(np.int64)]
    names = tuple(arms), tuple(places), tuple(strata), tuple(q_models), tuple(shadows)
    return Columns(*names, found, of_steps.frozen(), of_actions.frozen(), same_tasks)


def _number_of(name: Name, among: dict[Name, int]) -> int:
    """In the order of first appearance."""
    return among.setdefault(name, len(among))


def _arm(rows: Sequence[OfferRow]) -> str:
    """The Q model of an episode, or the unguided arm.

    The absence of Q-values alone does not decide: a Q model that failed, or candidates that were
    all equal, belong to what serving that Q model does.
    """
    if all(_draws(row) == 1 and row.candidates[0].q_value is None for row in rows):
        return CONTROL
    return NO_Q_MODEL if rows[-1].q_model.partition("@")[0] == _NONE else rows[-1].q_model


def _draws(row: OfferRow) -> float:
    return sum(_number(candidate.count) for candidate in row.candidates)


def _step(row: OfferRow) -> dict[str, float]:
    q_values = {candidate.content: _number(candidate.q_value) for candidate in row.candidates}
    counts = {candidate.content: _number(candidate.count) for candidate in row.candidates}
    first = next(iter(q_values), "")
    chosen_q = q_values.get(row.chosen, nan)
    most = max(counts.values(), default=nan)
    # Without Q there was no choice by Q, and with one candidate none at all.
    decided = len(q_values) > 1 and not isnan(chosen_q)
    counted = decided and not isnan(most)
    return {
        "depth": row.depth,
        "draws": _draws(row),
        "distinct": len(q_values),
        "q_taken": q_values.get(row.taken, nan),
        "q_gain": chosen_q - q_values[first] if decided else nan,
        "is_first": float(row.chosen == first) if decided else nan,
        "is_most_frequent": float(counts[row.chosen] == most) if counted else nan,
        "is_vote": float(row.chosen == max(counts, key=counts.__getitem__)) if counted else nan,
        "fallback": float(row.reason == FALLBACK) if row.reason else nan,
        "outside": _number(row.out_of_domain),
        "followed": float(row.taken == row.chosen),
        "tokens": _number(row.completion_tokens),
        "ms": _number(row.duration_ms),
        "left_out": row.left_out_tokens,
    }


def _action(taken: ThresholdActionRow, row: OfferRow) -> dict[str, float]:
    return {
        "action": ACTIONS.index(taken.action),
        "outcome": OUTCOMES.index(taken.outcome),
        "q_before": taken.q_before,
        "q_after": taken.q_after,
        "tokens": taken.prompt_tokens + taken.completion_tokens,
        "chosen": float(row.chosen in taken.candidates),
    }


def _number(value: float | None) -> float:
    return nan if value is None else value
