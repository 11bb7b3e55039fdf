"""A real server with scripted models on a free port, and clients of it."""

import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest
import uvicorn
from qguide_client import AsyncQGuide, QGuide, Retry

os.environ.setdefault("OMP_NUM_THREADS", "1")

START_S = 60
AT_ONCE = Retry(first_wait_s=0.001)

Answer = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The server's address."""
    from server.app import create_app
    from server.settings.settings import SCRIPTED, Settings

    settings = Settings(policy=SCRIPTED, q_models={"demo@1": SCRIPTED}, max_candidates=8)
    config = uvicorn.Config(create_app(settings), log_level="error", lifespan="on", ws="none")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            _wait_until(lambda: server.started)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(START_S)


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


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"the server did not start within {START_S} s")
        time.sleep(0.02)
