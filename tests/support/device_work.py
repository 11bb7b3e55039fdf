"""Work for a device thread that waits until a test lets it run."""

import asyncio
import threading
from collections.abc import Sequence

from qguide.qnet.device.device_thread import DeviceThread, DeviceWorker
from qguide.qnet.errors import ScorerUnavailableError, UnscorableError


class Gated:
    """Doubles numbers, but only while its gate is open; remembers its batches."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.batches: list[list[int]] = []
        self.threads: set[str] = set()

    def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.batches.append(list(numbers))
        self.threads.add(threading.current_thread().name)
        self.entered.set()
        assert self.gate.wait(10)
        if any(number < 0 for number in numbers):
            raise ValueError("negative")
        if 400 in numbers:
            raise UnscorableError("the trunk does not take this")
        if 503 in numbers:
            raise ScorerUnavailableError("the trunk is gone")
        if 666 in numbers:
            raise SystemExit
        return [2 * number for number in numbers]

    async def is_busy(self) -> None:
        """Wait until a batch is running."""
        await asyncio.to_thread(self.entered.wait, 10)


async def together(worker: DeviceWorker[int, int], gated: Gated, *numbers: int) -> list[object]:
    """Results or exceptions of these numbers in one batch."""
    busy = asyncio.create_task(DeviceWorker(worker.thread, gated).submit(0))
    await gated.is_busy()
    tasks = [asyncio.create_task(worker.submit(n)) for n in numbers]
    await asyncio.sleep(0)
    gated.gate.set()
    await busy
    return list(await asyncio.gather(*tasks, return_exceptions=True))


async def is_red(thread: DeviceThread) -> None:
    """Wait until the thread says that it is dead; nobody closes it."""
    async with asyncio.timeout(10):
        while thread.healthy:
            await asyncio.sleep(0.001)
