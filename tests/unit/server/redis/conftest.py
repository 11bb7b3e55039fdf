"""A real Redis for each test, and a link to it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from qguide.server.observability.metrics import Metrics
from qguide.server.redis.client import RedisLink
from tests.support.redis_server import RedisServer, require_redis


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    require_redis()
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def link(redis: RedisServer) -> AsyncIterator[RedisLink]:
    link = RedisLink(redis.url, Metrics(), timeout_s=3.0, ping_every_s=0.05)
    async with link.watched():
        yield link
