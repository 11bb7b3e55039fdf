"""Comparison of both ALFWorld engines on real games, played side by side.

    python -m benchmarks parity --games DIR --episodes 40 --seed 0

Random walks (in which one action in ten is made inadmissible) alternate with the expert's episodes.
Games are drawn without replacement; an episode ends when it is won or after `max_steps`. Both
engines get the same actions, which are chosen from the real engine's observations.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from qguide.training.environment import Task
from qguide.training.environments.alfworld.bundle import build_alfworld_suite
from qguide.training.environments.alfworld.engines.python import PythonEnvironment
from qguide.training.environments.alfworld.engines.textworld import EnginePool, TextWorldEnvironment
from qguide.training.environments.alfworld.game.game import load_game
from qguide.training.trajectory import parse_action

REQUIRED_OBSERVATIONS = 0.995
_INVALID_SHARE = 0.1

Choose = Callable[[str, list[str]], str]
"""Function from the last observation and the admissible actions to the next action."""


@dataclass(slots=True)
class Agreement:
    """Number of equal answers of the two engines."""

    same: int = 0
    total: int = 0

    def count(self, equal: bool) -> None:
        """Count one comparison."""
        self.same += equal
        self.total += 1

    @property
    def rate(self) -> float:
        """Share of equal answers; 0 if nothing was compared."""
        return self.same / self.total if self.total else 0.0


@dataclass(slots=True)
class ParityReport:
    """Result of a parity run.

    Attributes:
        observations, admissible_sets, won_flags: agreement after resets and steps.
        episodes, steps, won: number of episodes, of their steps, and of won episodes.
        mismatches: a description of each difference.
    """

    observations: Agreement = field(default_factory=Agreement)
    admissible_sets: Agreement = field(default_factory=Agreement)
    won_flags: Agreement = field(default_factory=Agreement)
    episodes: int = 0
    steps: int = 0
    won: int = 0
    mismatches: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """True if all admissible sets and won flags agree, and 99.5 % of the observations."""
        return (
            self.admissible_sets.rate == 1.0
            and self.won_flags.rate == 1.0
            and self.observations.rate >= REQUIRED_OBSERVATIONS
        )

    @property
    def exit_status(self) -> int:
        """0 if the run passed, else 1."""
        return 0 if self.passed else 1


def run_parity(games_dir: Path, *, episodes: int, seed: int, max_steps: int = 30, console: Console) -> ParityReport:
    """Compare the engines over `episodes` games, and print mismatches and a table."""
    rng = random.Random(seed)
    tasks = build_alfworld_suite(games_dir).tasks
    report = ParityReport()
    pool = EnginePool(processes=1)
    try:
        with console.status("") as status:
            for number, task in enumerate(rng.sample(tasks, min(episodes, len(tasks)))):
                status.update(f"game {number + 1} of {episodes}: {escape(task.id)}")
                choose = expert_walk() if number % 2 else random_walk(rng)
                _compare(task, choose, pool, report, max_steps=max_steps)
    finally:
        pool.close()
    for mismatch in report.mismatches:
        console.print(escape(mismatch), highlight=False)
    console.print(_table(report))
    return report


def random_walk(rng: random.Random) -> Choose:
    """Draw a verb, then one of its actions; sometimes make the action inadmissible.

    Most admissible actions are `go to`, so a draw among all actions would hardly do anything else.
    """

    def choose(_: str, admissible: list[str]) -> str:
        verb = rng.choice(sorted({action.split()[0] for action in admissible}))
        action = rng.choice([action for action in admissible if action.split()[0] == verb])
        if rng.random() >= _INVALID_SHARE:
            return action
        words = action.split()
        return " ".join([*words[:-1], str(rng.randint(1, 9))]) if len(words) > 2 else "xyzzy"

    return choose


def expert_walk() -> Choose:
    """Play as the expert does."""
    from qguide.training.environments.alfworld.expert.expert import AlfWorldExpert

    expert = AlfWorldExpert()
    return lambda observation, _: parse_action(expert.reply(observation))


def _compare(task: Task, choose: Choose, pool: EnginePool, report: ParityReport, *, max_steps: int) -> None:
    path = Path(task.source)
    real, twin = TextWorldEnvironment(pool, path), PythonEnvironment(load_game(path))
    actions = ["(reset)"]
    seen = real.reset(), twin.reset()
    for _ in range(max_steps):
        _judge(task, actions, seen, real, twin, report)
        if real.won or twin.won:
            break
        actions.append(choose(seen[0], real.admissible_actions()))
        seen = real.step(actions[-1]).observation, twin.step(actions[-1]).observation
    else:
        _judge(task, actions, seen, real, twin, report)
    report.episodes += 1
    report.steps += len(actions) - 1
    report.won += real.won
    real.close()


def _judge(
    task: Task,
    actions: list[str],
    seen: tuple[str, str],
    real: TextWorldEnvironment,
    twin: PythonEnvironment,
    report: ParityReport,
) -> None:
    compared = (
        (report.observations, "observation", *seen),
        (report.won_flags, "won", real.won, twin.won),
        (report.admissible_sets, "admissible", real.admissible_actions(), twin.admissible_actions()),
    )
    for agreement, what, theirs, ours in compared:
        agreement.count(theirs == ours)
        if theirs != ours:
            report.mismatches.append(
                f"{task.id} step {len(actions) - 1} after {actions[-1]!r}: {what}\n"
                f"  textworld: {_difference(theirs, ours)}\n"
                f"  python:    {_difference(ours, theirs)}"
            )


def _difference(one: object, other: object) -> object:
    if isinstance(one, list) and isinstance(other, list):
        return f"only here {sorted(set(one) - set(other))}"
    return one


def _table(report: ParityReport) -> Table:
    table = Table(title=f"{report.episodes} episodes, {report.steps} steps, {report.won} won")
    for heading in ("compared", "agree", "of", "rate", "required"):
        table.add_column(heading, justify="left" if heading == "compared" else "right")
    rows = (
        ("admissible sets", report.admissible_sets, 1.0),
        ("won flags", report.won_flags, 1.0),
        ("observations", report.observations, REQUIRED_OBSERVATIONS),
    )
    for name, agreement, required in rows:
        colour = "green" if agreement.rate >= required else "red"
        rate = f"[{colour}]{agreement.rate:.2%}[/]"
        table.add_row(name, str(agreement.same), str(agreement.total), rate, f"{required:.1%}")
    return table
