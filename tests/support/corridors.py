"""Corridors that are solved: rows that `collect` would write if corridors had an expert."""

from pathlib import Path

from qguide.training.algorithms.tree import EXPERT
from qguide.training.data.runs import JsonlWriter, open_run
from qguide.training.data.trajectories import Trajectory
from qguide.training.environments.corridor import Corridor, CorridorConfig, CorridorSuite
from qguide.training.trajectory import Step, path_history, react_reply

THOUGHT = "On."


def write_solutions(runs: Path, *, count: int, first_seed: int = 0) -> Path:
    """Write the shortest solutions of some corridors to the run folder `expert`."""
    suite = CorridorSuite(first_seed, count)
    with open_run(runs / "expert", CorridorConfig()) as run, JsonlWriter(run.rows) as rows:
        for task in suite.tasks:
            environment = suite.make(task)
            first, steps = environment.reset(), []
            for action in Corridor.of_seed(int(task.source)).solution():
                done = environment.step(action)
                reply = react_reply(THOUGHT, action)
                steps.append(Step(reply, done.observation, done.reward, done.terminated))
            row = Trajectory(
                task_id=task.id,
                kind=task.kind,
                environment="fake",
                messages=path_history(first, steps),
                reward=steps[-1].reward,
                source=EXPERT,
            )
            rows.write(row.to_row())
    return runs / "expert"
