"""Fields of jobs that are options of their own on the command line, beside `--config` and `--set`.

An option is data, so that `qguide JOB --help` imports no job. Limits are checked by the class when the job starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from qguide.qnet.errors import ConfigError
from qguide.training.environments.registry import ENVIRONMENTS

ENVIRONMENT_HELP: Final = f"{', '.join(ENVIRONMENTS)}, or package.module:BUNDLE."


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a job.

    Attributes:
        fields: the fields that it fills, as in `--set`; the one of its name if there are none.
            A value of several fields has a colon between their parts.
        several: values are separated by commas.
        argument: it stands without a name on the command line.
        excludes: another option, which may not be given at the same time.
    """

    name: str
    help: str
    kind: Any = str
    fields: tuple[str, ...] = ()
    several: bool = False
    argument: bool = False
    excludes: str = ""

    @property
    def flag(self) -> str:
        """The option as it is written."""
        return f"--{self.name.replace('_', '-')}"

    def values(self, given: Any) -> dict[str, object]:
        """The value of each field."""
        fields = self.fields or (self.name,)
        if self.several:
            return {fields[0]: [part.strip() for part in given.split(",") if part.strip()]}
        parts = given.split(":") if len(fields) > 1 else [given]
        if len(parts) != len(fields):
            raise ConfigError(f"{self.flag} {given}: write {self.help.partition(' ')[0]}")
        return dict(zip(fields, parts, strict=True))


def fields_of(options: Sequence[Option], given: Mapping[str, Any]) -> dict[str, object]:
    """The values of fields that the options of a command line fill."""
    values: dict[str, object] = {}
    for option in options:
        if given[option.name] is None:
            continue
        if option.excludes and given[option.excludes] is not None:
            raise ConfigError(f"{option.flag} and --{option.excludes} exclude each other; omit one")
        values |= option.values(given[option.name])
    return values


EVALUATE: Final = (
    Option("output", "Folder to write or resume.", Path),
    Option("environment", ENVIRONMENT_HELP, fields=("environment.name",)),
    Option("engine", "python or textworld.", fields=("environment.engine",)),
    Option("games", "Folder of game files; without it games are generated.", Path, fields=("environment.games",)),
    Option(
        "generated",
        "FIRST:COUNT of generated games, such as 0:200.",
        fields=("environment.first_seed", "environment.count"),
        excludes="games",
    ),
    Option("task_ids", "File of task ids, one per line.", Path, fields=("environment.task_ids",)),
    Option("limit", "Maximum number of tasks.", int, fields=("environment.limit",)),
    Option("policy", "embedded, a folder, upstream:NAME or http://HOST/v1#MODEL."),
    Option("qnet", "embedded, or a folder."),
    Option("methods", "Separated by commas.", several=True),
    Option("candidates", "M.", int),
    Option("seeds", "Separated by commas.", several=True),
    Option("temperature", "Except for greedy draws.", float),
    Option("max_steps", "Maximum actions per episode.", int),
    Option("greedy_candidate", "Draw the first of the M candidates greedily.", bool),
    Option("parallel", "Tasks played at the same time.", int),
)

_RECORDINGS: Final = (
    Option("format", "A name in docs/bring/data.md, or module:name; else by the first record."),
    Option("reward_key", "Place of the reward, such as info.reward, or a span attribute."),
    Option("task_key", "Place of the task id; @file is the name of the file."),
    Option("messages_key", "Place of the messages, such as result.messages."),
    Option("outcomes", "JSON file of rewards by task id, for episodes that state none.", Path),
    Option("outcome_key", "Place of the id by which --outcomes lists rewards, such as run_id; else the task id."),
    Option("default_reward", "Reward of episodes that state none.", float),
    Option("skip_bad", "Leave out records that hold no episode.", bool),
)
"""Options by which recorded episodes are read."""

IMPORT: Final = (
    Option("source", "A file, or a folder with files below it.", Path, argument=True),
    Option("output", "Folder to write.", Path),
    Option("environment", "Name of the environment, if the recording names none."),
    *_RECORDINGS,
    Option("model_key", "Place of the model's name; @folder is the name of the file's folder."),
)

LEARN: Final = (
    Option(
        "source",
        "Recordings as `qguide import` reads them, or run folders of trajectories or trees.",
        list[Path],
        argument=True,
    ),
    Option("output", "Folder to write.", Path),
    Option("name", "Name that it is served under."),
    *_RECORDINGS,
)

EXPORT_DATA: Final = (
    Option("source", "A run folder, or its file of rows.", Path, argument=True),
    Option("output", "File to write; .parquet for parquet.", Path),
    Option("format", "trl-sft, trl-preference, trl-stepwise, atif or parquet."),
    Option("min_reward", "trl-sft, atif: lowest reward of an episode.", float),
    Option("threshold", "trl-stepwise: lowest value of a good step; else 0.5.", float),
)

CHOOSE: Final = (
    Option("checkpoints", "Folders of Q models, or embedded.", list[str], argument=True),
    Option("groups", "Decision groups of tasks that none was trained on.", list[Path]),
    Option("labels", "Labelled trees of such tasks, in place of groups.", list[Path]),
    Option("output", "Folder to write.", Path),
)
