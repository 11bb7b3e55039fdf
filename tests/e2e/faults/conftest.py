"""A server whose scorer waits for its gate."""

from collections.abc import Iterator

import pytest

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.server.app import create_app
from tests.support.gated_scorer import END_S, GatedScorer
from tests.support.serving import serving_app
from tests.unit.server.conftest import FAKES, models_of


@pytest.fixture
def scorer() -> Iterator[GatedScorer]:
    scorer = GatedScorer()
    yield scorer
    scorer.gate.set()


@pytest.fixture
def thread() -> DeviceThread:
    """The device thread of the server at `url`."""
    return DeviceThread()


@pytest.fixture
def url(scorer: GatedScorer, thread: DeviceThread) -> Iterator[str]:
    """A server whose scorer waits for its gate."""
    settings = FAKES.model_copy(update={"timeout_s": END_S})
    models = models_of(ScriptedPolicy(), scorer, thread)
    with serving_app(create_app(settings, build=lambda _: models)) as url:
        yield url
