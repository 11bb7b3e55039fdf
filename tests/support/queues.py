"""Waiting for what waits for a device, where the order of work is what a test is about."""

import asyncio

from qnet.device.fair_thread import FairThread

_PATIENCE_S = 30


async def until_waiting(thread: FairThread, count: int) -> None:
    """Return as soon as so many requests wait for the thread."""
    async with asyncio.timeout(_PATIENCE_S):
        while len(thread._queue) < count:
            await asyncio.sleep(0.001)
