"""A failing request fails alone, one too large is divided, a lost device ends its thread."""

import asyncio
import weakref
from collections.abc import Sequence

import pytest
import torch

from qguide.qnet.device.device_thread import DeviceThread, DeviceWorker, is_lost
from qguide.qnet.errors import ScorerUnavailableError
from tests.support.device_work import Gated, is_red, together


async def test_a_failing_request_fails_alone(thread: DeviceThread, gated: Gated) -> None:
    worker = DeviceWorker(thread, gated)
    first = asyncio.create_task(worker.submit(0))
    await gated.is_busy()
    tasks = [asyncio.create_task(worker.submit(n)) for n in (1, -1, 2)]
    await asyncio.sleep(0)
    gated.gate.set()
    one, broken, two = await asyncio.gather(*tasks, return_exceptions=True)
    assert (await first, one, two) == (0, 2, 4)
    assert isinstance(broken, ValueError)
    assert thread.healthy


async def test_what_a_trunk_refuses_fails_alone(thread: DeviceThread, gated: Gated) -> None:
    worker = DeviceWorker(thread, gated)
    one, broken, two = await together(worker, gated, 1, 400, 2)
    assert (one, two) == (2, 4)
    assert str(broken) == "the trunk does not take this"


async def test_a_failure_of_no_single_request_fails_the_batch_and_is_not_tried_one_by_one(
    thread: DeviceThread, gated: Gated
) -> None:
    worker = DeviceWorker(thread, gated)
    first = asyncio.create_task(worker.submit(0))
    await gated.is_busy()
    tasks = [asyncio.create_task(worker.submit(n)) for n in (1, 503, 2)]
    await asyncio.sleep(0)
    gated.gate.set()
    failures = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(failure) for failure in failures] == ["the trunk is gone"] * 3
    assert (await first, gated.batches) == (0, [[0], [1, 503, 2]])
    assert await worker.submit(3) == 6


class Small:
    """A device with room for so many numbers at once; knows whether a failed batch left any."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.batches: list[list[int]] = []
        self.left_behind: list[bool] = []
        self._tensor: weakref.ref[torch.Tensor] | None = None

    def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.batches.append(list(numbers))
        self.left_behind.append(self._tensor is not None and self._tensor() is not None)
        tensor = torch.tensor(numbers)
        self._tensor = weakref.ref(tensor)
        if sum(numbers) > self.room:
            raise torch.OutOfMemoryError("out of memory")
        doubled: list[int] = (2 * tensor).tolist()
        return doubled


async def test_a_batch_that_is_too_large_is_run_by_halves_in_a_memory_that_is_free_again(
    thread: DeviceThread, gated: Gated
) -> None:
    small = Small(room=2)
    worker = DeviceWorker(thread, small)
    assert await together(worker, gated, 1, 1, 1, 1) == [2, 2, 2, 2]
    assert small.batches == [[1, 1, 1, 1], [1, 1], [1, 1]]
    assert small.left_behind == [False] * 3


async def test_a_request_that_is_too_large_alone_fails_alone_and_leaves_nothing(
    thread: DeviceThread, gated: Gated
) -> None:
    small = Small(room=2)
    answers = await together(DeviceWorker(thread, small), gated, 3, 1, 1)
    assert isinstance(answers[0], torch.OutOfMemoryError)
    assert answers[1:] == [2, 2]
    assert small.left_behind == [False] * 3


def lost(*_: object) -> list[int]:
    """The error that CUDA raises for every call once the device is lost."""
    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_lost_device_is_the_end_of_its_thread(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "synchronize", lost)
    thread = DeviceThread(is_lost=is_lost)
    worker = DeviceWorker[int, int](thread, lost)
    answers = await together(worker, gated, 1, 2)
    assert {str(answer) for answer in answers} == {
        "the device thread died of this batch (AcceleratorError); restart the server"
    }
    await is_red(thread)
    with pytest.raises(ScorerUnavailableError, match="dead"):
        await worker.submit(3)
    thread.close()  # joins it, so that its error is reported within this test, which expects it


def test_only_a_device_that_answers_no_more_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = torch.AcceleratorError("CUDA error: invalid configuration argument")
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    assert not is_lost(refused)
    monkeypatch.setattr(torch.accelerator, "synchronize", lost)
    assert is_lost(refused)
    assert not is_lost(torch.OutOfMemoryError("CUDA out of memory"))
