"""Attempts of real LLMs at tasks, from recordings of any format and from recorded decision groups.

The model that made an attempt is kept for folds and for the rule "always the best model". It never
reaches a Q model.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from qguide.qnet.errors import ConfigError
from qguide.qnet.records import TreeRow
from qguide.qnet.types import History, Message
from qguide.training.data.decision_groups import decisions_of, holds_groups, read_groups
from qguide.training.data.row_files import is_file
from qguide.training.data.runs import RunFolder
from qguide.training.data.trajectories import UNNAMED, Trajectory
from qguide.training.recordings.episode import found_episodes
from qguide.training.recordings.fields import Fields
from qguide.training.recordings.formats.read import Reading, read_source

_NUMBER: Final = re.compile(r"[/_: -]*\d+$")


@dataclass(frozen=True, slots=True)
class AttemptTurn:
    """One action, and what was observed after it.

    Attributes:
        logprob: log-probability of the action, summed over its tokens; NaN if it is not known.
    """

    action: Message
    observation: str
    logprob: float = math.nan


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """One model's attempt at a task.

    Attributes:
        runs_on: turns may be missing behind the last one, which recorded groups do not tell.
    """

    task: str
    model: str
    opening: History
    turns: tuple[AttemptTurn, ...]
    reward: float
    runs_on: bool = False

    @property
    def section(self) -> str:
        """The part of a benchmark that its task belongs to: the task's id without its number."""
        return section_of(self.task)


def section_of(task: str) -> str:
    """A task's id without its number: a database, a set, a category."""
    return _NUMBER.sub("", task) or task


def family_of(model: str, families: Mapping[str, Sequence[str]]) -> str:
    """The first family of which a pattern fits; else the first word of the model's name."""
    for family, patterns in families.items():
        if any(fnmatch(model.lower(), pattern.lower()) for pattern in patterns):
            return family
    words = re.findall(r"[a-z]+", model.lower())
    return words[0] if words else model


def read_attempts(
    sources: Sequence[Path], reading: Reading, *, models: Sequence[str] = ("*",)
) -> list[RecordedAttempt]:
    """The attempts of some models, in the order of the sources."""
    fields = reading.fields  # once: they read the file of outcomes
    found = [
        attempt
        for source in sources
        for attempt in _read(source, reading, fields)
        if any(fnmatch(attempt.model, pattern) for pattern in models)
    ]
    if not found:
        raise ConfigError(f"{', '.join(map(str, sources))}: no attempt by a model named like {', '.join(models)}")
    return found


def _read(source: Path, reading: Reading, fields: Fields) -> Iterator[RecordedAttempt]:
    if is_file(RunFolder(source).rows) and holds_groups(source):
        for row in read_groups(source):
            yield from _of_group(row)
        return
    found = read_source(source, fields, format_=reading.format)
    for episode in found_episodes(found, skip_bad=reading.skip_bad):
        yield _of_trajectory(episode)


def _of_group(row: TreeRow) -> Iterator[RecordedAttempt]:
    opening = (Message("user", row.first_observation),)
    for candidate in decisions_of(row)[0].candidates:
        turn = AttemptTurn(Message("assistant", candidate.action), candidate.observation, _known(candidate.logprob))
        for model in candidate.sources:
            yield RecordedAttempt(row.task_id, model, opening, (turn,), candidate.outcome, runs_on=True)


def _of_trajectory(found: Trajectory) -> RecordedAttempt:
    messages, ends = found.messages, (*found.replies[1:], len(found.messages))
    turns = tuple(
        AttemptTurn(
            messages[i], "\n".join(said.content for said in messages[i + 1 : end]), _known(found.logprobs.get(i))
        )
        for i, end in zip(found.replies, ends, strict=True)
    )
    return RecordedAttempt(found.task_id, found.source or UNNAMED, found.opening, turns, found.reward)


def _known(logprob: float | None) -> float:
    return math.nan if logprob is None else logprob
