"""Rewards that lie in a file of their own, by task id: what an evaluation of others wrote."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from qguide.qnet.errors import ConfigError, RecordError
from qguide.training.recordings.json_stream import read_values
from qguide.training.recordings.places import first_at
from qguide.training.recordings.stated import to_reward

_SOLVED: Final = ("resolved_ids", "resolved", "solved_ids", "solved", "passed")
_FAILED: Final = (
    "unresolved_ids",
    "unresolved",
    "empty_patch_ids",
    "failed",
)
"""Not `error_ids` and `incomplete_ids`: what was never judged has no reward."""
_REWARDS: Final = ("reward", "score", "resolved", "success")
_INDIVIDUAL: Final = "individual"


def read_outcomes(path: Path) -> dict[str, float]:
    """Rewards by task id.

    Read are an object of rewards, such as `{"task": 1}` or `{"task": {"success": true}}`, and a
    report that lists ids, such as SWE-bench's `resolved_ids` and `unresolved_ids`.
    """
    try:
        values = list(read_values(path))
    except RecordError as error:
        raise ConfigError(str(error)) from error
    said = values[0].value if len(values) == 1 and not values[0].flaw else None
    if not isinstance(said, Mapping):
        raise ConfigError(f"{path} is no JSON object of rewards by task id; name another file")
    listed = dict.fromkeys(_ids(said, _SOLVED), 1.0)
    listed |= {task: 0.0 for task in _ids(said, _FAILED) if task not in listed}
    try:
        found = listed or dict(_each(said.get(_INDIVIDUAL, said)))
    except RecordError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not found:
        raise ConfigError(f"{path} has no reward; give an object of rewards by task id")
    return found


def _ids(report: Mapping[str, object], names: Sequence[str]) -> list[str]:
    lists = [report[name] for name in names if isinstance(report.get(name), list)]
    return [str(task) for ids in lists if isinstance(ids, list) for task in ids]


def _each(rewards: object) -> list[tuple[str, float]]:
    found = []
    for task, said in rewards.items() if isinstance(rewards, Mapping) else ():
        value = first_at(said, _REWARDS) if isinstance(said, Mapping) else said
        found.append((str(task), to_reward(value, "a reward")))
    return found
