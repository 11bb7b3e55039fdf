"""Choice among what real LLMs did in one state: rules, a small Q model and both, side by side.

    qguide choose-recorded --config training/configs/mint/choose_recorded.toml

reads recordings of any format, or runs of `recorded-groups`, and plays nothing. Candidates are
drawn at random among the attempts of a state; no chooser but "best model" knows who made one. The
recipe of the Q model is fixed, so that what was found on one recording can be tried on another.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from qguide.qnet.errors import ConfigError
from qguide.qnet.records import NonEmpty
from qguide.training.choosing.attempts import Attempt, family_of, read_attempts
from qguide.training.choosing.candidates import candidates_of
from qguide.training.choosing.figures import figures, task_means
from qguide.training.choosing.folds import Design, Earned, measure
from qguide.training.choosing.small_q import Training
from qguide.training.choosing.table import Table, table_of
from qguide.training.data.runs import JsonlWriter, open_run

RECIPE: Final = "recorded-1"
"""Name of the features, the model and its training; changed whenever one of them is."""


class ChooseRecordedConfig(BaseModel):
    """Configuration of `qguide choose-recorded`.

    Attributes:
        source: recordings in a format that `qguide import` reads, or runs of `recorded-groups`.
        format: of the recordings; "" detects it.
        output: the run folder to write.
        models: patterns of the names of the models whose attempts are taken.
        families: patterns of models by family; any other model is of the family that its name's
            first word says.
        after: number of first actions that are equal in a state.
        turns: turns of a candidate behind the state.
        observed: a candidate's last answer may be read; then its attempt has to go on after it.
        candidates: number of candidates to choose among.
        draws: groups drawn of each state.
        task_folds: folds of tasks; Q models choose in one and learn from the others.
        by_section: folds are of whole databases, sets or categories (a task's id without its
            number).
        family_folds: more than 1 lets Q models choose among candidates of families that they have
            not learned from.
        trainings: a seed for each training.
        training_draws: groups drawn of each state to learn from.
        steps: of a training, at most.
        halves: also the figures of the tasks by which the recipe was not chosen: whose ids have an
            odd CRC-32.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: tuple[Path, ...] = Field(min_length=1)
    format: str = ""
    output: Path
    models: tuple[NonEmpty, ...] = Field(default=("*",), min_length=1)
    families: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    after: int = Field(default=0, ge=0)
    turns: int = Field(default=1, ge=1)
    observed: bool = False
    candidates: int = Field(default=5, ge=2)
    draws: int = Field(default=20, ge=1)
    task_folds: int = Field(default=5, ge=2)
    by_section: bool = False
    family_folds: int = Field(default=1, ge=1)
    trainings: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    training_draws: int = Field(default=20, ge=1)
    steps: int = Field(default=Training().steps, ge=1)
    halves: bool = False

    @model_validator(mode="after")
    def _trainings_differ(self) -> "ChooseRecordedConfig":
        if len(set(self.trainings)) < len(self.trainings):
            raise ValueError(f"trainings {self.trainings} has a seed twice; name different ones")
        return self

    @property
    def design(self) -> Design:
        """The design of the measurement."""
        return Design(
            size=self.candidates,
            draws=self.draws,
            task_folds=self.task_folds,
            family_folds=self.family_folds,
            by_section=self.by_section,
            trainings=self.trainings,
            training_draws=self.training_draws,
        )


class ChosenRow(BaseModel):
    """One task.

    Attributes:
        rewards: mean reward of each chooser, over groups and trainings.
        trainings: of each chooser that was trained, by training.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task_id: str
    section: str
    rewards: Mapping[str, FiniteFloat]
    trainings: Mapping[str, tuple[FiniteFloat, ...]]


def run_choose_recorded(config: ChooseRecordedConfig) -> dict[str, float]:
    """Write a row for each task, and the figures; returns the mean reward of each chooser."""
    with open_run(config.output, config) as run:
        attempts = read_attempts(config.source, models=config.models, format_=config.format)
        table = _table(config, attempts)
        found = measure(table, config.design, Training(steps=config.steps))
        if not found.tasks:
            raise ConfigError(
                f"no state has {config.candidates} candidates in a fold; lower candidates, turns "
                "or family_folds"
            )
        rows = _rows(table, found)
        told = _figures(config, table, found, rows)
        run.rows.unlink(missing_ok=True)
        run.metrics.unlink(missing_ok=True)
        with JsonlWriter(run.rows) as writer:
            for row in rows:
                writer.write(row)
        with JsonlWriter(run.metrics) as metrics:
            metrics.write(told)
    return {name: each["reward"] for name, each in told["all"]["choosers"].items()}


def _table(config: ChooseRecordedConfig, attempts: Sequence[Attempt]) -> Table:
    states = candidates_of(
        attempts, after=config.after, turns=config.turns, observed=config.observed
    )
    if not states:
        raise ConfigError(
            f"no two of {len(attempts):,} attempts share a state after {config.after} actions and "
            f"have {config.turns} turns behind it; lower after or turns"
        )
    models = {attempt.model for attempt in attempts}
    return table_of(states, {model: family_of(model, config.families) for model in models})


def _rows(table: Table, found: Earned) -> list[ChosenRow]:
    tasks, means, single = task_means(found)
    sections = dict(zip(table.tasks.tolist(), table.sections.tolist(), strict=True))
    return [
        ChosenRow(
            task_id=table.task_names[task],
            section=table.section_names[sections[task]],
            rewards={name: round(float(values[i]), 6) for name, values in means.items()},
            trainings={
                name: tuple(round(float(values[i]), 6) for values in own)
                for name, own in single.items()
            },
        )
        for i, task in enumerate(tasks)
    ]


def _figures(
    config: ChooseRecordedConfig, table: Table, found: Earned, rows: Sequence[ChosenRow]
) -> dict[str, Any]:
    told: dict[str, Any] = {
        "recipe": RECIPE,
        "attempts": len(table.rewards),
        "states": len(table.first),
        "models": len(table.model_names),
        "families": len(set(table.families.tolist())),
        "calls_read": round(table.read, 4),
        "candidates": config.candidates,
        "taus": found.taus,
        "all": figures(table, found, kept=[True] * len(rows)),
    }
    untouched = [crc32(row.task_id.encode()) % 2 == 1 for row in rows]
    if config.halves and any(untouched):
        told["untouched"] = figures(table, found, kept=untouched)
    return told
