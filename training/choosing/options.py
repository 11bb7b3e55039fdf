"""Configuration of a choice among recorded attempts: its design and its trainings."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, model_validator

from qguide.qnet.records import NonEmpty
from qguide.training.choosing.features import Cut
from qguide.training.options import JobOptions
from qguide.training.recordings.formats.read import ReadingModels


@dataclass(frozen=True, slots=True)
class Training:
    """Hyperparameters.

    Attributes:
        hidden: units of each of two layers.
        ranking: weight of the softmax over a group.
        patience: looks, one every 25 steps, without a lower loss on held-back tasks.
    """

    hidden: int = 64
    dropout: float = 0.5
    ranking: float = 0.5
    decay: float = 0.02
    lr: float = 5e-3
    steps: int = 400
    batch: int = 128
    patience: int = 4


class FoldDesign(JobOptions):
    """Design of a measurement.

    Attributes:
        candidates: number of candidates to choose among.
        draws: groups drawn of each state.
        task_folds: folds of tasks; Q models choose in one and learn from the others.
        by_section: folds are of whole databases, sets or categories (a task's id without its
            number).
        family_folds: more than 1 lets Q models choose among candidates of families that they have
            not learned from.
        trainings: a seed for each training.
        training_draws: groups drawn of each state to learn from.
        training_tasks: most tasks that a Q model learns from, for learning curves.
        learned_in, judged_in: patterns of the sections (a task's id without its number) that Q
            models learn from, and that they choose in; different ones tell what transfers.
    """

    candidates: int = Field(default=5, ge=2)
    draws: int = Field(default=20, ge=1)
    task_folds: int = Field(default=5, ge=2)
    by_section: bool = False
    family_folds: int = Field(default=1, ge=1)
    trainings: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    training_draws: int = Field(default=20, ge=1)
    training_tasks: int | None = Field(default=None, ge=5)
    learned_in: tuple[NonEmpty, ...] = Field(default=("*",), min_length=1)
    judged_in: tuple[NonEmpty, ...] = Field(default=("*",), min_length=1)


class ChooseRecordedConfig(ReadingModels, FoldDesign):
    """Configuration of `qguide choose-recorded`, with its design and the options of reading.

    Attributes:
        source: recordings in a format that `qguide import` reads, what it wrote, or runs of
            `recorded-groups`.
        output: the run folder to write.
        models: patterns of the names of the models whose attempts are taken.
        families: patterns of models by family; any other model is of the family that its name's
            first word says.
        after: number of first actions that are equal in a state.
        turns: turns of a candidate behind the state.
        observed: a candidate's last answer may be read; then its attempt has to go on after it,
            unless it is finished.
        finished: choose among attempts that have ended, by their last `turns` turns. How long they
            were is not read, so 1 reads the last action alone; shorter ones are left out.
        answer: a regular expression that finds the answer in a last action, its first group if it
            has one: equal answers are equal actions, and an action without one is not valid.
        words: Q also reads what is said: topics, and what words and forms have earned in other
            tasks. Without, it reads 74 numbers of each candidate alone.
        tokenizer: a `tokenizer.json`, by whose tokens it is told what stopping attempts saves; None
            counts characters.
        steps: of a training, at most.
        shown: tasks of which one group is written to `choices.jsonl`, for the page to show.
        halves: also the figures of the tasks by which the recipe was not chosen: whose ids have an
            odd CRC-32.
    """

    source: tuple[Path, ...] = Field(min_length=1)
    output: Path
    models: tuple[NonEmpty, ...] = Field(default=("*",), min_length=1)
    families: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    after: int = Field(default=0, ge=0)
    turns: int = Field(default=1, ge=1)
    observed: bool = False
    finished: bool = False
    answer: re.Pattern[str] | None = None
    words: bool = True
    tokenizer: Path | None = None
    steps: int = Field(default=Training().steps, ge=1)
    shown: int = Field(default=200, ge=0)
    halves: bool = False

    @property
    def cut(self) -> Cut:
        """The cut of attempts."""
        return Cut(self.after, self.turns, self.observed, self.finished, self.answer)

    @model_validator(mode="after")
    def _fields_agree(self) -> "ChooseRecordedConfig":
        if self.finished and self.after:
            raise ValueError(f"after = {self.after} is of attempts that go on; leave it out with finished")
        if len(set(self.trainings)) < len(self.trainings):
            raise ValueError(f"trainings {self.trainings} has a seed twice; name different ones")
        return self
