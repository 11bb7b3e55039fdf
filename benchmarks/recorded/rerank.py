"""Choice among recorded candidates: Q models against majorities, the best run and the oracle.

    python -m benchmarks rerank-recorded --config …/configs/intercode_sql/rerank_recorded.toml

reads decision groups of `recorded-groups`, fold by fold, with Q models that were trained on the
other folds. Nothing is played: every candidate has its recorded result and reward.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from benchmarks.recorded.reranking import RankedTask, method_rewards, rerank_figures
from qguide.qnet.errors import ConfigError
from qguide.qnet.records import TreeRow
from qguide.qnet.types import Scorer
from qguide.training.data.decision_groups import decisions_of, read_groups
from qguide.training.data.runs import JsonlWriter, RunFolder, open_run
from qguide.training.licence.scored_decisions import score_groups
from qguide.training.rollouts.models import Inference, build_logprob_scorer, build_scorer


class RerankFold(BaseModel):
    """Tasks that some Q models were not trained on.

    Attributes:
        groups: run folder of `recorded-groups`, one decision per task.
        qnets: folders of Q models, for example of several seeds; their figures are averaged.
        policy: a policy's folder, whose log-probability chooses too; "" for none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups: Path
    qnets: tuple[str, ...] = ()
    policy: str = ""


class RerankConfig(BaseModel):
    """Configuration of `python -m benchmarks rerank-recorded`.

    Attributes:
        folds: disjoint by task.
        training: run folders of `recorded-groups` on whose tasks the best run is chosen, beside those
            of the other folds; a single fold needs them.
        output: the run folder to write.
        inference: how the Q models run.
        seed: of the intervals.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    folds: tuple[RerankFold, ...] = Field(min_length=1)
    training: tuple[Path, ...] = ()
    output: Path
    inference: Inference = Inference()
    seed: int = 0

    @model_validator(mode="after")
    def _best_run_is_chosen_elsewhere(self) -> "RerankConfig":
        if len(self.folds) + len(self.training) < 2:
            raise ValueError(
                "a single fold has no other to choose the best run on; name its training folds in training"
            )
        return self


class RerankedRow(BaseModel):
    """One task: candidates, values, and each method's expected reward.

    Attributes:
        q_values: for each Q model, of each candidate.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task_id: str
    fold: int
    actions: tuple[str, ...]
    observations: tuple[str, ...]
    counts: tuple[int, ...]
    rewards: tuple[FiniteFloat, ...]
    q_values: tuple[tuple[FiniteFloat, ...], ...]
    methods: Mapping[str, FiniteFloat]


def run_rerank_recorded(config: RerankConfig) -> dict[str, float]:
    """Write every task's choices; returns the mean reward of each method."""
    with open_run(config.output, config) as run:
        tasks = [task for n in range(len(config.folds)) for task in _ranked(config, n)]
        training = [row for folder in config.training for row in _groups(folder)]
        _require_distinct([*(task.row for task in tasks), *training])
        _write_rows(tasks, training, run)
        figures = rerank_figures(tasks, training, seed=config.seed)
        with JsonlWriter(run.metrics) as metrics:
            for name, values in figures.items():
                metrics.write({"method": name, "tasks": len(tasks), **values})
        return {name: values["reward"] for name, values in figures.items()}


def _groups(folder: Path) -> list[TreeRow]:
    """One decision of each task."""
    rows = list(read_groups(folder))
    if more := [row.task_id for row in rows if len(decisions_of(row)) != 1]:
        raise ConfigError(f"{folder}: {more[0]} has several decisions; name recorded groups")
    return rows


def _ranked(config: RerankConfig, number: int) -> Iterator[RankedTask]:
    """A fold's tasks with the values of its models."""
    fold = config.folds[number]
    rows = _groups(fold.groups)
    by_model = [_scores(build_scorer(name, config.inference), rows) for name in fold.qnets]
    logprobs = _scores(build_logprob_scorer(fold.policy, config.inference), rows) if fold.policy else None
    for place, row in enumerate(rows):
        yield RankedTask(
            row, number, q_values=[scores[place] for scores in by_model], logprobs=logprobs[place] if logprobs else ()
        )


def _scores(scorer: Scorer, rows: list[TreeRow]) -> list[list[float]]:
    """Value of each candidate of each row's decision."""
    return [decisions[0] for decisions in score_groups(scorer, rows)]


def _require_distinct(rows: list[TreeRow]) -> None:
    counts = Counter(row.task_id for row in rows)
    if repeated := [task_id for task_id, count in counts.items() if count > 1]:
        raise ConfigError(f"{min(repeated)} is in two folds; folds share no task, with each other or with training")


def _write_rows(tasks: list[RankedTask], training: list[TreeRow], run: RunFolder) -> None:
    rewards = method_rewards(tasks, training)
    run.rows.unlink(missing_ok=True)
    run.metrics.unlink(missing_ok=True)
    with JsonlWriter(run.rows) as writer:
        for place, task in enumerate(tasks):
            writer.write(
                RerankedRow(
                    task_id=task.row.task_id,
                    fold=task.fold + 1,
                    actions=tuple(c.action for c in task.candidates),
                    observations=tuple(c.observation for c in task.candidates),
                    counts=tuple(c.count for c in task.candidates),
                    rewards=tuple(task.rewards),
                    q_values=tuple(tuple(values) for values in task.q_values),
                    methods={name: values[place] for name, values in rewards.items()},
                )
            )
