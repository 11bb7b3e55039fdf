"""Agreement of InterCode-SQL's two engines, and with the recorded rewards, on recorded SELECTs.

    python -m tools.sql_engines --tasks data/tasks.json --sqlite data/sqlite \
        --dsn mysql://reader@localhost --recorded data/recorded_llm_episodes.jsonl.xz --every 4 \
        --output results/sql_engines.json

Each distinct recorded SELECT that had run in MySQL is played as the first action of its task, in
SQLite and in MariaDB. A reward counts as the recorded one within 0.006: it was recorded rounded.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from benchmarks.recorded.sql_episodes import read_recorded
from qguide.training.environment import StepResult
from qguide.training.environments.intercode_sql.bundle import InterCodeSqlConfig, build_suite
from qguide.training.environments.intercode_sql.tasks import task_id_of

ROUNDING = 0.006

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True)
class Submission:
    """A recorded SELECT and the reward that it had."""

    task_id: str
    action: str
    reward: float


def submissions(recorded: Path, every: int) -> list[Submission]:
    """Every so many-th distinct recorded SELECT that ran, with a reward as an episode has it.

    The runs that were asked for thoughts are left out: their actions are no plain SQL.
    """
    found: dict[tuple[str, str], float] = {}
    for episode in read_recorded(recorded):
        if "react" in episode.run:
            continue
        for turn in episode.turns:
            if turn.valid and turn.action.lower().startswith("select"):
                key = (task_id_of(episode.db, episode.task_id), turn.action)
                found[key] = max(0.0, turn.reward)
    return [Submission(*key, reward) for key, reward in sorted(found.items())[::every]]


def play(config: InterCodeSqlConfig, some: Sequence[Submission]) -> tuple[list[StepResult], float]:
    """The answer of an engine to each submission, and the seconds that all took."""
    with closing(build_suite(config)) as suite:
        by_id = {task.id: task for task in suite.tasks}
        answers = list(_answers(suite.make, by_id, some[:1]))  # starts the engine
        start = perf_counter()
        answers += _answers(suite.make, by_id, some[1:])
        return answers, perf_counter() - start


def _answers(make: Any, by_id: Mapping[str, Any], some: Sequence[Submission]) -> Iterator[StepResult]:
    for submission in some:
        with closing(make(by_id[submission.task_id])) as episode:
            episode.reset()
            yield episode.step(submission.action)


def same(one: float, other: float) -> bool:
    """True if two rewards are equal but for rounding."""
    return abs(one - other) < ROUNDING


@app.command()
def main(
    tasks: Annotated[Path, typer.Option()],
    sqlite: Annotated[Path, typer.Option()],
    dsn: Annotated[str, typer.Option(help="A MariaDB that holds the benchmark's dump.")],
    recorded: Annotated[Path, typer.Option()],
    output: Annotated[Path, typer.Option()],
    every: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Play the submissions in both engines and write how often they agree."""
    some = submissions(recorded, every)
    whole = {"tasks": tasks, "observation_chars": 100_000}
    configs = {"sqlite": InterCodeSqlConfig(databases=sqlite, **whole), "mariadb": InterCodeSqlConfig(dsn=dsn, **whole)}
    played = {name: play(config, some) for name, config in configs.items()}
    figures: dict[str, object] = {"submissions": len(some)}
    for name, (answers, seconds) in played.items():
        figures[name] = {
            "ran": sum(answer.valid for answer in answers),
            "recorded_reward": sum(
                same(answer.reward, submission.reward) for answer, submission in zip(answers, some, strict=True)
            ),
            "per_second": round(len(some) / seconds, 1),
        }
    pairs = list(zip(played["sqlite"][0], played["mariadb"][0], strict=True))
    figures["engines_agree"] = {
        "reward": sum(same(one.reward, other.reward) for one, other in pairs),
        "whole_observation": sum(one.observation == other.observation for one, other in pairs),
    }
    output.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    typer.echo(json.dumps(figures, indent=1))


if __name__ == "__main__":
    app()
