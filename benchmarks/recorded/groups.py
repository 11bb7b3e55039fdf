"""Decision groups from recorded LLM episodes: what several models did on the same task.

    python -m benchmarks recorded-groups --config …/configs/intercode_sql/recorded_groups.toml

reads recorded InterCode-SQL episodes, and writes one decision per task, whose candidates are the
distinct actions that the runs took, each with the recorded observation and reward. Queries change
nothing, so an action of any turn may stand in the first state. With rows = "trajectories" it writes
the candidates of a high reward as episodes of one step, which `sft` reads.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from benchmarks.recorded.sql_episodes import RecordedEpisode, RecordedTurn, read_recorded
from qguide.qnet.errors import ConfigError
from qguide.qnet.records import ROOT_ID, NodeRow, RolloutRow, TreeRow
from qguide.qnet.types import Message
from qguide.training.data.runs import JsonlWriter, RunFolder, open_run, rows_at_once
from qguide.training.data.trajectories import Trajectory
from qguide.training.environment import Task
from qguide.training.environments.intercode_sql.bundle import INTERCODE_SQL, InterCodeSqlConfig, parse_sql
from qguide.training.environments.intercode_sql.episode import EpisodeOptions
from qguide.training.environments.intercode_sql.tasks import task_id_of
from qguide.training.environments.registry import SelectedSuite, build_selected_suite

SOURCE = "recorded"


class RecordedGroupsConfig(BaseModel):
    """Configuration of `python -m benchmarks recorded-groups`.

    Attributes:
        episodes: the file of recorded episodes.
        environment: their tasks.
        output: the run folder to write.
        runs: patterns of the names of the runs to take ("*_handicap").
        turns: take each run's "first" action, or "all".
        only_valid: leave out actions that raised an error.
        most_candidates: at most so many of a task's distinct actions, drawn at random.
        rows: "groups" for `train-qnet`, or "trajectories" for `sft`.
        min_reward: of an action that becomes a trajectory.
        seed: of the draw.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    episodes: Path
    environment: InterCodeSqlConfig
    output: Path
    runs: tuple[str, ...] = Field(default=("*",), min_length=1)
    turns: Literal["first", "all"] = "first"
    only_valid: bool = False
    most_candidates: int | None = Field(default=None, ge=2)
    rows: Literal["groups", "trajectories"] = "groups"
    min_reward: FiniteFloat = 1.0
    seed: int = 0


Proposals = dict[str, list[tuple[str, RecordedTurn]]]
"""By action, each run that took it with its turn."""


def run_recorded_groups(config: RecordedGroupsConfig) -> dict[str, float]:
    """Write a row for each task; returns the figures that `metrics.jsonl` gets too."""
    suite = build_selected_suite(config.environment)
    try:
        with open_run(config.output, config) as run:
            return _write(config, suite, run)
    finally:
        suite.close()


def _write(config: RecordedGroupsConfig, suite: SelectedSuite, run: RunFolder) -> dict[str, float]:
    proposals = _proposals(config)
    groups = 0
    figures: dict[str, float] = defaultdict(float)
    with rows_at_once(run.rows) as writer:
        for task in suite.tasks:
            if row := _groups_row(config, suite, task, proposals.get(task.id, {})):
                groups += 1
                figures["candidates"] += len(row.nodes)
                figures["invalid_candidates"] += sum(not node.valid for node in row.nodes)
                for one in [row] if config.rows == "groups" else trajectories(row, config):
                    writer.write(one)
                    figures["rows"] += 1
        if not groups:
            raise ConfigError(
                f"no run of {config.episodes} that is named like {', '.join(config.runs)} acted on "
                f"any of {len(suite.tasks)} tasks; check runs and environment.task_ids"
            )
    figures |= {"tasks": groups, "tasks_without": len(suite.tasks) - groups}
    with JsonlWriter(run.metrics) as metrics:
        metrics.write(figures)
    return dict(figures)


def _proposals(config: RecordedGroupsConfig) -> dict[str, Proposals]:
    """The actions on each task, by the task's id."""
    by_task: dict[str, Proposals] = defaultdict(lambda: defaultdict(list))
    for episode in read_recorded(config.episodes):
        if any(fnmatch(episode.run, pattern) for pattern in config.runs):
            for turn in _turns(episode, config):
                found = by_task[task_id_of(episode.db, episode.task_id)][parse_sql(turn.action)]
                found.append((episode.run, turn))
    return by_task


def _turns(episode: RecordedEpisode, config: RecordedGroupsConfig) -> Iterable[RecordedTurn]:
    acted = [turn for turn in episode.turns if parse_sql(turn.action)]
    taken = acted[:1] if config.turns == "first" else acted
    return [turn for turn in taken if turn.valid or not config.only_valid]


def _groups_row(config: RecordedGroupsConfig, suite: SelectedSuite, task: Task, proposals: Proposals) -> TreeRow | None:
    """One decision among the distinct actions; None where no run acted."""
    actions = sorted(proposals)
    most = config.most_candidates
    if most is not None and len(actions) > most:
        actions = sorted(Random(f"{config.seed} {task.id}").sample(actions, most))
    if not actions:
        return None
    options = config.environment.options
    environment = suite.make(task)
    return TreeRow(
        task_id=task.id,
        kind=task.kind,
        environment=INTERCODE_SQL.name,
        first_observation=environment.reset(),
        system=INTERCODE_SQL.chat.system,
        nodes=tuple(
            _candidate(number, action, proposals[action], options) for number, action in enumerate(actions, start=1)
        ),
        draws=1,
    )


def _candidate(number: int, action: str, by: Sequence[tuple[str, RecordedTurn]], options: EpisodeOptions) -> NodeRow:
    """An action with what MySQL answered, submitted right after."""
    turn = by[0][1]
    submitted = RolloutRow(outcome_reward=turn.reward, steps=2, terminated=True)
    return NodeRow(
        id=number,
        parent=ROOT_ID,
        depth=1,
        action=action,
        source=SOURCE,
        taken=number == 1,
        count=len(by),
        observation=options.shown(turn.observation),
        reward=turn.reward,
        valid=turn.valid,
        rollouts=(submitted,),
        sources=tuple(sorted({run for run, _ in by})),
    )


def trajectories(row: TreeRow, config: RecordedGroupsConfig) -> Iterator[TreeRow]:
    """The candidates of a high reward as episodes that end with them."""
    for candidate in row.nodes:
        if candidate.reward >= config.min_reward:
            yield Trajectory(
                messages=(
                    Message("system", row.system or ""),
                    Message("user", row.first_observation),
                    Message("assistant", candidate.action),
                    Message("user", candidate.observation),
                ),
                reward=candidate.reward,
                task_id=row.task_id,
                kind=row.kind,
                environment=row.environment,
                terminated=False,
                source=SOURCE,
            ).to_row()
