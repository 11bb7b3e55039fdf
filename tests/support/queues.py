"""Waiting until requests are queued for a device, for tests of the order of work."""

import asyncio

from qguide.qnet.device.fair_thread import FairThread

_PATIENCE_S = 30


async def until_waiting(thread: FairThread, count: int) -> None:
    """Return as soon as so many requests wait for the thread."""
    async with asyncio.timeout(_PATIENCE_S):
        while len(thread._queue) < count:
            await asyncio.sleep(0.001)
