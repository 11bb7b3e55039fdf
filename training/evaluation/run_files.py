"""The files of an evaluation's run folder: reading, writing, and which are comparable."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from qguide.qnet.errors import ConfigError, RecordError
from qguide.training.data.runs import read_rows, regular
from qguide.training.evaluation.records import EpisodeRow, Results
from qguide.training.evaluation.results import Key, latest

EPISODES: Final = "episodes.jsonl"
RESULTS: Final = "results.json"
_SPEED_ALONE: Final = frozenset({"processes"})
"""Fields of an environment that change how fast it is, and no episode."""


def read_episodes(run: Path) -> dict[Key, EpisodeRow]:
    """The last row of each (method, seed, task); empty if nothing has been played."""
    path = run / EPISODES
    return latest(read_rows(path, EpisodeRow)) if path.exists() else {}


def write_results(run: Path, results: Results) -> None:
    """Write the results as a whole or not at all."""
    unfinished = run / f"{RESULTS}.tmp"
    unfinished.write_text(results.model_dump_json(indent=2) + "\n", encoding="utf-8")
    unfinished.replace(run / RESULTS)


def read_results(run: Path) -> Results:
    """The results of a finished evaluation."""
    path = run / RESULTS
    try:
        return Results.model_validate_json(regular(path).read_bytes())
    except (OSError, ValidationError) as error:
        raise RecordError(f"{path} has no valid results; run `qguide evaluate` first") from error


def condition(results: Results, name: str) -> object:
    """A field of an evaluation's configuration, without what changes its speed alone."""
    value = results.config.get(name)
    if name == "environment" and isinstance(value, dict):
        return {key: value[key] for key in value if key not in _SPEED_ALONE}
    return value


def require_comparable(
    evaluations: Sequence[tuple[Path, Results]], *, has_to_agree: Callable[[str], bool], remedy: str
) -> None:
    """Check that evaluations agree with the first one.

    Args:
        evaluations: run folders and their results.
        has_to_agree: says of each field of the configuration if it must not differ.
        remedy: end of the error's message.
    """
    first_run, first = evaluations[0]
    for run, other in evaluations[1:]:
        for name in filter(has_to_agree, sorted(first.config.keys() | other.config.keys())):
            here, there = condition(other, name), condition(first, name)
            if here != there:
                raise ConfigError(
                    f"{run} was evaluated with {name} = {here!r}, but {first_run} with {there!r}; "
                    f"{remedy}"
                )
