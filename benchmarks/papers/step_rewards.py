"""Compare step rewards with longer roll-outs, and agents by their step rewards (IPR figures 3, 4).

    python -m benchmarks step-rewards accuracy_groups --rollouts 1,3,5,7 --output rewards.json
    python -m benchmarks step-rewards rewards_sft rewards_ipr --output rewards.json

reads decision groups of `groups`, or what `rro` explored; plays nothing. The accuracy needs more
roll-outs of each action than the estimates are made of. The reward at each step is that of the
actions that the trajectories took, in the states that were valued: `groups` values those with a
choice, or a share of them (`valued_share`), and `rro` every one. An agent's reward per step is the
mean of its trajectories' means, as in the paper: a lost trajectory of forty steps counts once.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.papers.step_reward_accuracy import RewardAccuracy, RolledOut, StepMean, mean_by_step, reward_accuracy
from qguide.qnet.errors import ConfigError
from qguide.qnet.records import NodeRow
from qguide.training.data.decision_groups import decisions_of, read_groups
from qguide.training.data.runs import EXPLORED
from qguide.training.evaluation.statistics import Interval, clustered_mean_interval


@dataclass(frozen=True, slots=True)
class AccuracyWithInterval(RewardAccuracy):
    """Accuracy over a run's tasks.

    Attributes:
        interval: 95 % bootstrap interval of the accuracy over tasks.
    """

    interval: Interval


@dataclass(frozen=True, slots=True)
class RunRewards:
    """Step rewards of one run folder.

    Attributes:
        trajectories: number of trajectories with a valued state.
        steps: number of steps that its trajectories took in valued states.
        mean_reward: mean over trajectories of the mean reward of their steps.
        interval: 95 % bootstrap interval of `mean_reward` over tasks.
        accuracy: of estimates by different numbers of roll-outs; empty if there are too few.
        by_step: mean reward of each step.
    """

    run: str
    trajectories: int
    steps: int
    mean_reward: float
    interval: Interval
    accuracy: tuple[AccuracyWithInterval, ...]
    by_step: tuple[StepMean, ...]


def run_step_rewards(
    runs: Sequence[Path], output: Path, *, rollouts: Sequence[int], min_gap: float, console: Console
) -> list[RunRewards]:
    """Show and write the figures of each run.

    Args:
        rollouts: numbers of roll-outs whose means are judged.
        min_gap: smallest difference of two rewards that counts as one.
    """
    if min(rollouts, default=1) < 1 or min_gap <= 0:
        raise ConfigError(
            f"rollouts are {list(rollouts)} and min_gap {min_gap:g}; each number of roll-outs has "
            "to be 1 or more, and min_gap above 0"
        )
    found = [_rewards_of(run, rollouts, min_gap) for run in runs]
    console.print(_accuracy_table(found))
    console.print(_steps_table(found))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n", encoding="utf-8")
    return found


def _rewards_of(run: Path, rollouts: Sequence[int], min_gap: float) -> RunRewards:
    is_explored = (run / EXPLORED).exists()
    path = run / EXPLORED if is_explored else run
    # `groups` keeps the taken candidate alone of a state that it does not value, and that one's
    # outcome is the episode's: no mean of roll-outs.
    rows = list(read_groups(path))
    trajectories = [
        [one if is_explored or len(one.candidates) > 1 else None for one in decisions_of(row)] for row in rows
    ]
    valued = [decision for decisions in trajectories for decision in decisions if decision]
    if not valued:
        raise ConfigError(f"{run} has no trajectory with a valued state; run `qguide groups` or `qguide rro` first")
    taken = [[one.taken.outcome if one else None for one in steps] for steps in trajectories]
    states: defaultdict[str, list[list[RolledOut]]] = defaultdict(list)
    for row, decisions in zip(rows, trajectories, strict=True):
        states[row.task_id] += [[_rolled_out(candidate) for candidate in one.candidates] for one in decisions if one]
    judged = [_accuracy_of(list(states.values()), n, min_gap) for n in rollouts]
    means: defaultdict[str, list[float]] = defaultdict(list)
    for row, rewards in zip(rows, taken, strict=True):
        if known := [reward for reward in rewards if reward is not None]:
            means[row.task_id].append(fmean(known))
    return RunRewards(
        str(run),
        sum(map(len, means.values())),
        len(valued),
        fmean(mean for of_task in means.values() for mean in of_task),
        clustered_mean_interval(
            [sum(of_task) for of_task in means.values()],
            [len(of_task) for of_task in means.values()],
            np.random.default_rng(0),
        ),
        tuple(one for one in judged if one),
        tuple(mean_by_step(taken)),
    )


def _accuracy_of(
    tasks: Sequence[Sequence[Sequence[RolledOut]]], rollouts: int, min_gap: float
) -> AccuracyWithInterval | None:
    """The accuracy over all states of all tasks; None without a pair."""
    states = [state for of_task in tasks for state in of_task]
    overall = reward_accuracy(states, rollouts=rollouts, min_gap=min_gap)
    if not overall.pairs:
        return None
    each = [reward_accuracy(of_task, rollouts=rollouts, min_gap=min_gap) for of_task in tasks]
    shares = [(one.accuracy, one.pairs) for one in each if one.accuracy is not None]
    interval = clustered_mean_interval(
        [share * pairs for share, pairs in shares], [pairs for _, pairs in shares], np.random.default_rng(0)
    )
    return AccuracyWithInterval(**asdict(overall), interval=interval)


def _rolled_out(candidate: NodeRow) -> RolledOut:
    outcomes = [rollout.outcome_reward for rollout in candidate.rollouts]
    return RolledOut(outcomes, exact=candidate.terminated is not False)


def _accuracy_table(found: Sequence[RunRewards]) -> Table:
    table = Table(title="accuracy of step rewards against the other roll-outs")
    for name in ("run", "roll-outs", "pairs", "accuracy", "95 %", "mean error"):
        table.add_column(name, justify="left" if name == "run" else "right")
    for one in found:
        for judged in one.accuracy:
            assert judged.accuracy is not None, "there are pairs"
            table.add_row(
                one.run,
                str(judged.rollouts),
                f"{judged.pairs:,}",
                f"{judged.accuracy:.1%}",
                "{:.1%} to {:.1%}".format(*judged.interval),
                "" if judged.error is None else f"{judged.error:.3f}",
            )
    return table


def _steps_table(found: Sequence[RunRewards]) -> Table:
    table = Table(title="mean reward of the actions taken")
    table.add_column("step", justify="right")
    for one in found:
        table.add_column(one.run, justify="right")
    means = [{mean.step: mean.mean for mean in one.by_step} for one in found]
    for step in range(1, max(max(of) for of in means) + 1):
        cells = [f"{of[step]:.3f}" if step in of else "" for of in means]
        table.add_row(str(step), *cells)
    table.add_row("trajectory", *(f"{one.mean_reward:.3f}" for one in found))
    table.add_row("95 %", *("{:.3f} to {:.3f}".format(*one.interval) for one in found))
    return table
