"""Episodes to learn from: run folders of trajectories, trees and decision groups, and recordings.

Each candidate of a decision group is learned from as an episode of one action, which ends with the
mean outcome of playing on from there. All of a played episode count as one where episodes are counted.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean

from qguide.qnet.errors import ConfigError
from qguide.qnet.records import TreeRow
from qguide.qnet.types import History
from qguide.training.data.decision_groups import decisions_of, holds_groups, read_groups
from qguide.training.data.records import recorded_once
from qguide.training.data.row_files import is_file
from qguide.training.data.runs import RunFolder
from qguide.training.data.trajectories import Trajectory
from qguide.training.learning.episodes import LearnedEpisode, episode_of
from qguide.training.recordings.episode import found_episodes
from qguide.training.recordings.fields import Fields
from qguide.training.recordings.formats.read import read_source
from qguide.training.trajectory import Drawn


def read_learnable(
    sources: Sequence[Path], fields: Fields, *, skip_bad: bool, format_: str | None = None
) -> list[LearnedEpisode]:
    """All episodes of these sources, in their order."""
    read = chain.from_iterable(_read(one, fields, format_, skip_bad=skip_bad) for one in sources)
    found = recorded_once(read, lambda one: "" if isinstance(one, LearnedEpisode) else one.episode)
    every = (one if isinstance(one, LearnedEpisode) else episode_of(one) for one in found)
    if not (episodes := [one for one in every if one.actions]):
        listed = ", ".join(map(str, sources)) or "no source"
        raise ConfigError(f"{listed} holds no episode with an action; name another source")
    return episodes


def read_states(sources: Sequence[Path]) -> list[tuple[str, History]]:
    """The state before each action of these sources, with its task; rewards are not needed."""
    fields = Fields(default_reward=0.0)
    episodes = read_learnable(sources, fields, skip_bad=False)
    return [(episode.task, state) for episode in episodes for state in episode.states]


def _read(
    source: Path, fields: Fields, format_: str | None, *, skip_bad: bool
) -> Iterator[LearnedEpisode | Trajectory]:
    if is_file(RunFolder(source).rows) and holds_groups(source):
        for number, row in enumerate(read_groups(source)):
            yield from _candidates(row, f"{source}:{number}")
        return
    found = read_source(source, fields, format_=format_)
    yield from found_episodes(found, skip_bad=skip_bad)


def _candidates(row: TreeRow, played: str) -> Iterator[LearnedEpisode]:
    for decision in decisions_of(row):
        drawn = tuple(Drawn(node.message, node.count, greedy=node.greedy) for node in decision.candidates)
        for node in decision.candidates:
            outcome = fmean(rollout.outcome_reward for rollout in node.rollouts)
            yield LearnedEpisode(row.task_id, (decision.history,), (node.message,), outcome, (drawn,), part_of=played)
