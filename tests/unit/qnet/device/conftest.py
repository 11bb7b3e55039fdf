"""A device thread with a short queue, and work that waits."""

from collections.abc import Iterator

import pytest

from qguide.qnet.device.device_thread import DeviceThread
from tests.support.device_work import Gated


@pytest.fixture
def thread() -> Iterator[DeviceThread]:
    thread = DeviceThread(max_waiting=4)
    yield thread
    thread.close()


@pytest.fixture
def gated() -> Gated:
    return Gated()
