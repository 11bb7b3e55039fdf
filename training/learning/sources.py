"""Episodes to learn from: run folders of trajectories and trees, and recordings in any format."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.types import History
from qguide.training.data.records import TrajectoryRow
from qguide.training.data.runs import RunFolder, read_rows
from qguide.training.learning.episodes import Episode, episodes_of
from qguide.training.recordings.episode import BadRecord
from qguide.training.recordings.fields import Fields
from qguide.training.recordings.formats.read import read_episodes, recording_of


def read_learnable(
    sources: Sequence[Path], fields: Fields, *, environment: str, skip_bad: bool
) -> list[Episode]:
    """All episodes of these sources, in their order.

    Args:
        sources: run folders of trajectories or trees, recordings, or folders of those.
        fields: of the reward and the task id in recordings.
        environment: name of the environment, for recordings that name none.
        skip_bad: leave out records that hold no episode, in place of refusing the source.

    Raises:
        ConfigError: a source is missing, of an unknown format, or holds no episode.
        RecordError: a record holds no episode, and `skip_bad` is not set.
    """
    rows = chain.from_iterable(
        _rows(source, fields, environment=environment, skip_bad=skip_bad) for source in sources
    )
    if not (episodes := [one for one in episodes_of(rows) if one.actions]):
        listed = ", ".join(map(str, sources)) or "no source"
        raise ConfigError(f"{listed} holds no episode with an action; name another source")
    return episodes


def read_states(sources: Sequence[Path]) -> list[tuple[str, History]]:
    """The state before each action of these sources, with its task; rewards are not needed.

    Raises:
        ConfigError, RecordError: see `read_learnable`.
    """
    fields = Fields(default_reward=0.0)
    episodes = read_learnable(sources, fields, environment="imported", skip_bad=False)
    return [(episode.task, state) for episode in episodes for state in episode.states]


def _rows(
    source: Path, fields: Fields, *, environment: str, skip_bad: bool
) -> Iterator[TrajectoryRow]:
    run = RunFolder(source)
    place = run.rows if run.rows.exists() else source
    recording = recording_of(place, messages=fields.messages)
    if run.rows.exists() and recording.format != "served":
        yield from read_rows(run.rows, TrajectoryRow)
        return
    for found in read_episodes(recording, fields):
        if not isinstance(found, BadRecord):
            yield found.to_row(environment=environment)
        elif not skip_bad:
            raise RecordError(f"{found}; correct it, or leave such records out with --skip-bad")
