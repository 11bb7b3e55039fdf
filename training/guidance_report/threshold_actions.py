"""Actions below a threshold: how often they were taken, what they changed and what they cost."""

import numpy as np

from qguide.training.guidance_report.agreement import mean_of
from qguide.training.guidance_report.columns import ACTIONS, OUTCOMES, Columns
from qguide.training.guidance_report.schema import ActionFigures


def actions_of(columns: Columns) -> tuple[ActionFigures, ...]:
    """The figures of each Q model's actions; none where no threshold was set."""
    actions = columns.actions
    found = []
    for number, q_model in enumerate(columns.q_models):
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
