"""A real server with scripted models on a free port, and clients of it."""

import os
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest
from qguide_client import AsyncQGuide, QGuide, Retry

os.environ.setdefault("OMP_NUM_THREADS", "1")

AT_ONCE = Retry(first_wait_s=0.001)

Answer = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The server's address."""
    from qguide.server.app import create_app
    from qguide.server.settings.settings import SCRIPTED, Settings
    from tests.support.serving import serving_app

    settings = Settings(
        policy=SCRIPTED,
        q_models={"demo@1": SCRIPTED},
        max_candidates=8,
        unknown_models="error",
        max_body_bytes=4 * 1024**2,
        max_history_messages=1024,
    )
    with serving_app(create_app(settings)) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[QGuide]:
    """A client of the server."""
    with QGuide(url, timeout_s=30, retry=AT_ONCE) as opened:
        yield opened


@pytest.fixture
async def async_client(url: str) -> AsyncIterator[AsyncQGuide]:
    """An async client of the server."""
    async with AsyncQGuide(url, timeout_s=30, retry=AT_ONCE) as opened:
        yield opened


def client_of(answer: Answer, retry: Retry = AT_ONCE) -> QGuide:
    """A client whose requests are answered by a function."""
    return QGuide("http://qguide.test", retry=retry, transport=httpx.MockTransport(answer))
