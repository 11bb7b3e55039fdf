"""Recordings in a format that is named or shows in their first record, and their episodes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import Field

from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.packages import import_named, plugins, raised_text
from qguide.qnet.records import MAX_REWARD
from qguide.training.data.records import recorded_once
from qguide.training.data.row_files import is_file
from qguide.training.data.runs import RunFolder
from qguide.training.data.trajectories import Trajectory
from qguide.training.options import JobOptions
from qguide.training.recordings.episode import BadRecord, Places
from qguide.training.recordings.fields import Fields, read_outcomes, require_a_task, stated_task, value_at
from qguide.training.recordings.formats.benchmarks import (
    appworld_records,
    fireact_records,
    inspect_records,
    intercode_records,
    read_model_calls,
    read_samples,
    read_simulations,
    read_trials,
    refuse_lone_simulations,
    tau2_records,
    trial_records,
    verifiers_records,
)
from qguide.training.recordings.formats.bfcl import bfcl_records, read_answers
from qguide.training.recordings.formats.coding_agents import atif_records, mini_swe_records, swe_agent_records
from qguide.training.recordings.formats.data_sets import (
    preference_records,
    prompt_records,
    read_sharegpt_record,
    read_tree_record,
)
from qguide.training.recordings.formats.layout import Layout, files_of, values_of
from qguide.training.recordings.formats.openhands import openhands_records
from qguide.training.recordings.formats.trace_records import langfuse, langsmith, mlflow, phoenix
from qguide.training.recordings.json_stream import OnBytes, Value, parsed, read_values
from qguide.training.recordings.otel import read_spans
from qguide.training.recordings.otel_spans import fragments_of

_MINT: Final = Places(
    messages="history", rewards=("success",), sources=("model",), tasks=("set+task_id", "task_id"), graded=True
)
_MINT_RUN: Final = Places(
    messages="state.history", rewards=("state.success",), tasks=("task.task_id",), sources=("state.model",), graded=True
)

_SERVED: Final = "served"

FORMATS: Final[Mapping[str, Layout]] = {
    # Trajectories of version 1, too, so that they are refused with their remedy.
    _SERVED: Layout(("nodes", "messages outcome_reward version"), read=read_tree_record),
    "messages": Layout(("messages",)),
    "sharegpt": Layout(("conversations",), read=lambda record, fields: [read_sharegpt_record(record, fields)]),
    "otel": Layout(("resourceSpans", "resourceLogs"), fragments=fragments_of),
    "langfuse": Layout(
        ("traceId type", "trace_id type", "traceId value", "trace_id value name", "id observations"), fragments=langfuse
    ),
    "langsmith": Layout(("run_type inputs trace_id", "run_type child_runs"), fragments=langsmith),
    "mlflow": Layout(("info data.spans",), fragments=mlflow),
    "phoenix": Layout(("context.trace_id span_kind",), fragments=phoenix),
    "atif": Layout(
        ("schema_version steps agent",),
        translate=atif_records,
        files=("trajectory.json", "trajectory.cont-*.json", "*.atif.json"),
        beside="../result.json",
    ),
    "tau-bench": Layout(("traj reward",), Places(messages="traj")),
    "tau2-bench": Layout(
        ("simulations info", "simulation_index info"), translate=tau2_records, values=read_simulations
    ),
    "swe-agent": Layout(("history trajectory",), translate=swe_agent_records, files=("*.traj",)),
    "mini-swe-agent": Layout(
        ("messages trajectory_format", "messages info.mini_version"), translate=mini_swe_records, files=("*.traj.json",)
    ),
    "openhands": Layout(("instance_id history",), translate=openhands_records, files=("output*.jsonl",)),
    "inspect": Layout(("samples eval",), translate=inspect_records, files=("*.eval",), values=read_samples),
    "terminal-bench": Layout(
        ("trial_name is_resolved",), translate=trial_records, files=("results.json",), values=read_trials
    ),
    "appworld": Layout(
        ("input.messages output.choices",),
        translate=appworld_records,
        files=("lm_calls.jsonl",),
        values=read_model_calls,
    ),
    "intercode": Layout(("*.turn_history",), translate=intercode_records, within="*"),
    "fireact": Layout(("*.traj *.pred",), translate=fireact_records, within="*"),
    "bfcl": Layout(translate=bfcl_records, files=("*_result.json",), values=read_answers),
    "verifiers": Layout(("traces env task",), translate=verifiers_records, files=("traces.jsonl",)),
    "mint": Layout(("history success task_id",), _MINT),
    "mint-run": Layout(("state.history task",), _MINT_RUN),
    "trl": Layout(("prompt completion",), translate=prompt_records),
    "verl": Layout(("input output score",), translate=prompt_records),
    "preferences": Layout(("preferred_output non_preferred_output", "chosen rejected"), translate=preference_records),
}


class Reading(JobOptions):
    """Options of every job that reads recordings.

    Attributes:
        format: a name of the table in docs/bring/data.md, or `package.module:name` of your own;
            None detects it by the first record.
        reward_key: field of a record, or attribute of a span, that holds the reward, with dots
            between nested ones; "" takes the format's own.
        task_key: the same for the task id; without one, episodes with the same first messages are
            of one task. `@file` is the name of the file, `@folder` that of its folder, and
            `@folders.1` that of the folder above it.
        messages_key: the same for the messages.
        outcomes: a JSON file of rewards by task id, or a report with lists such as
            `resolved_ids`, for episodes that state no reward.
        outcome_key: as `task_key`, for the id by which `outcomes` lists rewards, such as a run's; "" takes the task id.
        default_reward: reward of an episode that states none; None refuses it.
        skip_bad: leave out records that hold no episode, in place of refusing the source.
    """

    format: str | None = None
    reward_key: str = ""
    task_key: str = ""
    messages_key: str = ""
    outcomes: Path | None = None
    outcome_key: str = ""
    default_reward: float | None = Field(default=None, ge=-MAX_REWARD, le=MAX_REWARD)
    skip_bad: bool = False

    @property
    def fields(self) -> Fields:
        """The fields that the operator names."""
        return Fields(
            self.reward_key,
            self.task_key,
            self.default_reward,
            self.messages_key,
            outcomes=read_outcomes(self.outcomes) if self.outcomes else {},
            outcome=self.outcome_key,
        )


class ReadingModels(Reading):
    """Options of the jobs that tell the models of recordings apart.

    Attributes:
        model_key: as `task_key`, for the name of the model that made an episode.
    """

    model_key: str = ""

    @property
    def fields(self) -> Fields:
        """The fields that the operator names."""
        return replace(super().fields, model=self.model_key)


def read_source(source: Path, fields: Fields, *, format_: str | None = None) -> Iterator[Trajectory | BadRecord]:
    """The episodes of a recording, of a run folder of trajectories or trees, or of an import."""
    return read_episodes(recording_of(source, format_, messages=fields.messages), fields)


def _are_ours(rows: Path) -> bool:
    first = next(read_values(rows), None)
    return first is not None and _SERVED in _formats_of(first.value)


_MOST_TRIED: Final = 50
"""Files of a folder in which a format is looked for."""


IMPORTED: Final = "trajectories"
"""The folder of an import that holds every episode."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Files in one format."""

    format: str
    layout: Layout
    paths: tuple[Path, ...]


def recording_of(source: Path, format_: str | None = None, *, messages: str = "") -> Recording:
    """A file or a folder, read in the format that is named, else in that of its first record.

    A record of no format, with something at the place `messages`, is a list of messages. The rows of a run folder of
    trajectories or trees, or of an import, are read as what they are.
    """
    runs = () if is_file(source) else (RunFolder(source).rows, RunFolder(source / IMPORTED).rows)
    if rows := next((rows for rows in runs if is_file(rows) and _are_ours(rows)), None):
        source, format_ = rows, None
    if format_:
        layout = layout_named(format_)
        refuse_lone_simulations(found := files_of(source, layout.files))
        return Recording(format_, layout, tuple(found))
    refuse_lone_simulations(every := files_of(source))
    name = detect_format(every, messages)
    return Recording(name, FORMATS[name], tuple(files_of(source, FORMATS[name].files)))


def layout_named(name: str) -> Layout:
    """A format of the table or of an installed package, or one that an import path names.

    That is a `Layout`, or a function that turns a record into plain ones.
    """
    if name in FORMATS:
        return FORMATS[name]
    brought = plugins("formats")
    path = brought.get(name, name)
    if ":" not in path:
        raise ConfigError(
            f"{name!r} is no format; choose one of {', '.join((*FORMATS, *brought))}, or name your "
            "own as package.module:name"
        )
    try:
        found = import_named(path)
    except Exception as error:
        raise ConfigError(f"{path} cannot be imported: {raised_text(error)}") from error
    if isinstance(found, Layout):
        return found
    if not callable(found):
        raise ConfigError(f"{name} is neither a Layout nor a function; see docs/bring/data.md")
    return Layout(translate=found)


def detect_format(paths: Sequence[Path], messages: str = "") -> str:
    """The format of the first record that shows one; a folder may begin with other files."""
    reasons = []
    for path in paths[:_MOST_TRIED]:
        if name := _format_of_name(path):
            return name
        for value in read_values(path):
            if value.flaw:
                reasons.append(f"{path.name}, line {value.line}: {value.flaw}")
                continue
            if len(found := _formats_of(value.value)) == 1:
                return found[0]
            if messages and value_at(value.value, messages) is not None:
                return "messages"
            which = f"of several formats ({', '.join(found)})" if found else "of no known format"
            reasons.append(f"{path.name}, line {value.line} is {which}")
            break
    raise ConfigError(
        f"{reasons[0] if reasons else f'{paths[0]} holds no JSON'}: choose a format with --format "
        f"({', '.join(FORMATS)}), or say where the messages lie with --messages-key"
    )


def _format_of_name(path: Path) -> str:
    for name, layout in FORMATS.items():
        if any(path.match(end) for end in layout.files if end.startswith("*.")):
            return name
    return ""


def _formats_of(record: object) -> list[str]:
    """The formats of which a record shows the most marks."""
    shown = {name: _shown_marks(record, layout) for name, layout in FORMATS.items()}
    most = max(shown.values())
    return [name for name, count in shown.items() if most and count == most]


def _shown_marks(record: object, layout: Layout) -> int:
    """Number of places of the longest mark that a record shows whole."""
    marks = [mark.split() for mark in layout.marks]
    whole = [mark for mark in marks if all(_shows(record, part) for part in mark)]
    return max(map(len, whole), default=0)


def _shows(record: object, place: str) -> bool:
    """True if a record has a place, a null there included."""
    return (isinstance(record, Mapping) and place in record) or value_at(record, place) is not None


class StoredRecord(NamedTuple):
    """A record as its file has it, to be read here or on another machine."""

    path: Path
    value: Value

    @property
    def nbytes(self) -> int:
        """Length of the record."""
        return self.value.nbytes


Made = TypeVar("Made")
Spread = Callable[[Callable[[StoredRecord], Any], Iterable[StoredRecord]], Iterable[Any]]
"""Results of a function for each record, in order; `map` is one."""


def read_episodes(
    recording: Recording, fields: Fields, *, on_bytes: OnBytes = lambda count: None
) -> Iterator[Trajectory | BadRecord]:
    """The episodes of a recording, and the records that hold none."""
    return made_of_episodes(recording, fields, _itself, map, on_bytes=on_bytes)


def _itself(found: Trajectory | BadRecord) -> Trajectory | BadRecord:
    return found


def made_of_episodes(
    recording: Recording,
    fields: Fields,
    make: Callable[[Trajectory | BadRecord], Made],
    spread: Spread,
    *,
    on_bytes: OnBytes,
) -> Iterator[Made]:
    """Results of a function for each episode of a recording, and each record that holds none.

    Records are read where `spread` calls, which is here for formats that need more than a record: the other
    requests of its trace, or files beside it.
    """
    layout = recording.layout
    if fields.messages and (layout.fragments or layout.read is read_tree_record):
        raise ConfigError(
            f"--messages-key is not for {recording.format}, whose messages have one place only; "
            "leave it out, or choose another --format"
        )
    if fields.model and layout.fragments:
        raise ConfigError(f"--model-key is not for {recording.format}, whose records are single requests; leave it out")
    if fragments := layout.fragments:
        return map(make, read_spans(recording.paths, fields, fragments, on_bytes=on_bytes))
    read = partial(_read, layout, fields, make)
    records = (StoredRecord(path, value) for path in recording.paths for value in values_of(path, layout, on_bytes))
    return _made(map(read, records) if layout.values else spread(read, records), fields, recording.paths)


class _Read(NamedTuple):
    """Results for the episodes of one record.

    Attributes:
        episode: id under which a server recorded it; "" if none did.
        named: whether it has a task id, which rows of ours always have, where the operator says; None for a record that
            holds no episode.
    """

    episode: str
    named: bool | None
    made: list[Any]


def _read(
    layout: Layout, fields: Fields, make: Callable[[Trajectory | BadRecord], object], stored: StoredRecord
) -> _Read:
    value = parsed(stored.value)
    try:
        if value.flaw:
            raise RecordError(value.flaw)
        if not isinstance(value.value, dict):
            raise RecordError("it is not a JSON object")
        record = {**value.value, **value.around}
        episodes = list(layout.episodes(record, fields))
        named = layout.read is read_tree_record or bool(stated_task(record, *fields.tasks))
        if fields.model:
            episodes = _by_model(episodes, record, fields)
    except RecordError as error:
        return _Read("", None, [make(BadRecord(stored.path, value.line, str(error)))])
    return _Read(episodes[0].episode if episodes else "", named, list(map(make, episodes)))


def _made(found: Iterable[_Read], fields: Fields, paths: Sequence[Path]) -> Iterator[Any]:
    """Results for each record; refused if none has a task id where the operator says."""
    named = set[bool | None]()
    for one in recorded_once(found):
        named.add(one.named)
        yield from one.made
    if False in named and True not in named:
        require_a_task(fields, paths)


def _by_model(episodes: Sequence[Trajectory], record: Mapping[str, object], fields: Fields) -> list[Trajectory]:
    if not (name := stated_task(record, fields.model)):
        raise RecordError(f"it has no {fields.model!r}; name another --model-key")
    return [replace(episode, source=name) for episode in episodes]
