"""`python -m benchmarks success-curve`, `step-rewards`, `read-pairs` and `parity`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from qguide.commands.errors import shown_errors
from qguide.qnet.errors import ConfigError


def success_curve(
    runs: Annotated[list[Path], typer.Argument(help="Output folders of evaluations.")],
    output: Annotated[Path, typer.Option(help="Image file to write.")],
) -> None:
    """Plot success against completion tokens, for evaluations that differ in M."""
    with shown_errors():
        from benchmarks.papers.success_curve import run_success_curve

        run_success_curve(runs, output, console=Console())


def step_rewards(
    runs: Annotated[list[Path], typer.Argument(help="Run folders of groups or rro.")],
    output: Annotated[Path, typer.Option(help="JSON file to write.")],
    rollouts: Annotated[str, typer.Option(help="Numbers of roll-outs whose mean is judged by the others.")] = "1,3,5",
    min_gap: Annotated[float, typer.Option(help="Smallest difference of two rewards that counts as one.")] = 0.1,
) -> None:
    """Accuracy of step rewards against longer roll-outs, and their mean at each step."""
    with shown_errors():
        from benchmarks.papers.step_rewards import run_step_rewards

        numbers = [_number(text.strip()) for text in rollouts.split(",") if text.strip()]
        run_step_rewards(runs, output, rollouts=numbers, min_gap=min_gap, console=Console())


def read_pairs(
    groups: Annotated[list[Path], typer.Argument(help="Run folders of groups, of ALFWorld.")],
    q_model: Annotated[str, typer.Option(help="embedded, or the folder of a Q model.")] = "",
    policy: Annotated[str, typer.Option(help="embedded, or a policy's folder, whose log-probability is Q.")] = "",
    seed: Annotated[int, typer.Option(help="Seed of the things that are exchanged.")] = 0,
) -> None:
    """Share of states in which Q shows whether the thing that a reply takes is there."""
    with shown_errors():
        from benchmarks.papers.read_pairs import run_read_pairs

        run_read_pairs(groups, q_model=q_model, policy=policy, seed=seed, console=Console())


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"--rollouts: {text!r} is no whole number; write numbers such as 1,3,5")
    return int(text)


def parity(
    games: Annotated[Path, typer.Option(help="Folder of game files.")],
    episodes: Annotated[int, typer.Option(min=1, help="Number of games.")] = 40,
    seed: Annotated[int, typer.Option(help="Seed of the choice of games and the walks.")] = 0,
    max_steps: Annotated[int, typer.Option(min=1, help="Maximum steps of a walk.")] = 30,
) -> None:
    """Play ALFWorld's two engines side by side and report where they differ."""
    with shown_errors():
        from benchmarks.papers.parity import run_parity

        report = run_parity(games, episodes=episodes, seed=seed, max_steps=max_steps, console=Console())
    raise typer.Exit(report.exit_status)
