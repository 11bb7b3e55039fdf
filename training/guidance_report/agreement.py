"""Agreement of Q with the policy, over all steps and by depth."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from qguide.training.guidance_report.calibration import success_bound, weighted_auc
from qguide.training.guidance_report.columns import ACTIONS, OUTCOMES, Column, Columns
from qguide.training.guidance_report.comparison import spread_of
from qguide.training.guidance_report.schema import ActionFigures, Agreement, StepRange

DEPTHS: Final = ((1, 1), (2, 2), (3, 3), (4, 5), (6, 10), (11, 20), (21, 40), (41, None))
"""Ranges of depths, first and last; the last one has no end."""


def agreement_of(columns: Columns) -> Agreement:
    """Agreement over all steps."""
    steps, episodes = columns.steps, columns.episodes
    decided = ~np.isnan(steps["is_first"])
    several = steps["draws"] > 1
    changed = episodes["changed"] > 0
    return Agreement(
        steps=len(steps["depth"]),
        with_choice=int(decided.sum()),
        windows=int((steps["left_out"] > 0).sum()),
        unanimous=mean_of((steps["distinct"] == 1)[several]),
        argmax_is_first=mean_of(steps["is_first"]),
        first_by_chance=mean_of(1 / steps["distinct"][decided]),
        argmax_is_most_frequent=mean_of(steps["is_most_frequent"]),
        fallback=mean_of(steps["fallback"]),
        out_of_domain=mean_of(steps["outside"]),
        domain_asked=int((~np.isnan(steps["outside"])).sum()),
        followed=mean_of(steps["followed"]),
        q_gain=mean_of(steps["q_gain"]),
        changed=int(changed.sum()),
        unchanged=int((~changed).sum()),
        changed_outcome=mean_of(episodes["outcome"][changed]),
        unchanged_outcome=mean_of(episodes["outcome"][~changed]),
    )


def step_ranges(columns: Columns) -> tuple[StepRange, ...]:
    """The steps by depth."""
    depth = columns.steps["depth"]
    found = []
    for first, last in DEPTHS:
        chosen = (depth >= first) & (depth <= (np.inf if last is None else last))
        if chosen.any():
            found.append(_range(columns, chosen, _name(first, last)))
    return tuple(found)


def mean_of(values: "Column | NDArray[np.bool_]") -> float | None:
    """Mean of the values that are known; None if there are none."""
    numbers = np.asarray(values, dtype=np.float64)
    known = numbers[~np.isnan(numbers)]
    return float(known.mean()) if len(known) else None


def _name(first: int, last: int | None) -> str:
    if last is None:
        return f"{first} and more"
    return str(first) if first == last else f"{first} to {last}"


def _range(columns: Columns, chosen: NDArray[np.bool_], name: str) -> StepRange:
    steps = {column: values[chosen] for column, values in columns.steps.items()}
    outcomes = columns.episodes["outcome"][steps["episode"].astype(np.int64)]
    known = ~np.isnan(steps["q_taken"])
    positive = (outcomes[known] > success_bound(columns)).astype(np.float64)
    return StepRange(
        depths=name,
        steps=int(chosen.sum()),
        with_choice=float((~np.isnan(steps["is_first"])).mean()),
        argmax_is_first=mean_of(steps["is_first"]),
        q_gain=mean_of(steps["q_gain"]),
        auc=weighted_auc(steps["q_taken"][known], positive, np.ones(int(known.sum()))),
        tokens=spread_of(steps["tokens"]),
        ms=spread_of(steps["ms"]),
    )


def actions_of(columns: Columns) -> tuple[ActionFigures, ...]:
    """The figures of each Q model's actions; none where no threshold was set."""
    actions = columns.actions
    found = []
    for number, q_model in enumerate(columns.q_models if actions else ()):
        for code, action in enumerate(ACTIONS):
            chosen = (actions["q_model"] == number) & (actions["action"] == code)
            if not chosen.any():
                continue
            mine = {name: values[chosen] for name, values in actions.items()}
            episodes = np.unique(mine["episode"].astype(np.int64))
            ended = {name: mine["outcome"] == index for index, name in enumerate(OUTCOMES)}
            found.append(
                ActionFigures(
                    q_model=q_model,
                    action=action,
                    steps=int(chosen.sum()),
                    episodes=len(episodes),
                    raised=float(ended["raised"].mean()),
                    failed=float(ended["failed"].mean()),
                    chosen=None if action == "stop" else mean_of(mine["chosen"]),
                    q_before=float(mine["q_before"].mean()),
                    q_after=float(mine["q_after"].mean()),
                    tokens=float(mine["tokens"].mean()),
                    mean_outcome=float(columns.episodes["outcome"][episodes].mean()),
                )
            )
    return tuple(found)
