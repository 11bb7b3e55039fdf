"""The files of an evaluation's run folder, and how they are read."""

from pathlib import Path
from typing import Final

from pydantic import ValidationError

from qnet.errors import RecordError
from training.data.runs import read_rows
from training.evaluation.records import EpisodeRow, Results
from training.evaluation.results import Key, latest

EPISODES: Final = "episodes.jsonl"
RESULTS: Final = "results.json"


def read_episodes(run: Path) -> dict[Key, EpisodeRow]:
    """The last row of each (method, seed, task); empty if nothing has been played."""
    path = run / EPISODES
    return latest(read_rows(path, EpisodeRow)) if path.exists() else {}


def read_results(run: Path) -> Results:
    """The results of a finished evaluation.

    Raises:
        RecordError: the folder has none.
    """
    path = run / RESULTS
    try:
        return Results.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise RecordError(f"{path} has no valid results; run `qguide evaluate` first") from error
