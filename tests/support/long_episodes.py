"""Episodes of many steps, each of which adds as much as the one before it."""

from functools import partial

from benchmarks.episodes import episodes as bench
from qguide.server.episodes.service import Episodes

CANDIDATES = 8
CANDIDATE_BYTES = 2_000
history_at = bench.history_at
offer_at = partial(bench.offer_at, candidates=CANDIDATES, candidate_bytes=CANDIDATE_BYTES)


async def take_step(episodes: Episodes, step: int) -> None:
    """End a step of the episode `e`."""
    await episodes.end_step("e", history_at(step), offer_at(step))
