"""A policy behind the fake upstream."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.server.chat.fake_openai import FakeUpstream
from tests.support.upstream_policy import QUICK


@pytest.fixture
def connect(address: tuple[FakeUpstream, str]) -> Any:
    @asynccontextmanager
    async def connected(**more: Any) -> AsyncIterator[OpenAICompatiblePolicy]:
        given: dict[str, Any] = {"url": address[1], "model": "fake", "limits": QUICK, "api_key": "secret"}
        policy = OpenAICompatiblePolicy("demo", **(given | more))
        try:
            yield policy
        finally:
            await policy.close()

    return connected
