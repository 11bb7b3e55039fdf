"""The cost of a step does not grow with its episode: counted in bytes, not in seconds."""

import tracemalloc
from pathlib import Path

from qguide.server.episodes.recorder import EpisodeRecorder
from qguide.server.episodes.service import Episodes
from qguide.server.episodes.state import Outcome
from qguide.server.episodes.store import MemoryEpisodeStore
from qguide.server.observability.metrics import Metrics
from tests.support.long_episodes import CANDIDATE_BYTES, CANDIDATES, take_step

FIRST, LAST = 5, 100


def recording(folder: Path) -> Episodes:
    recorder = EpisodeRecorder(folder, max_file_bytes=10**9, max_files=9)
    return Episodes(MemoryEpisodeStore(max_bytes=10**9, ttl_s=3600), recorder, Metrics())


async def allocated_by(episodes: Episodes, step: int) -> int:
    """Most bytes that a step holds at once."""
    tracemalloc.start()
    try:
        await episodes.begin_step("e")
        await take_step(episodes, step)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def test_a_step_of_a_long_episode_holds_as_many_bytes_as_one_of_a_short_episode(tmp_path: Path) -> None:
    episodes, costs = recording(tmp_path), {}
    for step in range(LAST + 1):
        if step in (FIRST, LAST):
            costs[step] = await allocated_by(episodes, step)
        else:
            await take_step(episodes, step)
    assert costs[FIRST] > CANDIDATES * CANDIDATE_BYTES
    assert costs[LAST] < 1.5 * costs[FIRST]
    assert (await episodes.close("e", Outcome(reward=1.0))).episode.recorded
