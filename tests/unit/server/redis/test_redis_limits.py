"""Limits that servers share through a real Redis."""

import pytest

from qguide.server.http.admission import Limiter
from qguide.server.http.errors import OverLimitError
from qguide.server.observability.request_context import Account
from qguide.server.redis.client import RedisLink
from tests.support.redis_users import ADA, admitted


async def test_servers_count_together(link: RedisLink) -> None:
    one, two = (Limiter(link, concurrent_requests=0) for _ in range(2))
    assert await admitted(one)
    assert await admitted(two)
    for limiter in (one, two):
        with pytest.raises(OverLimitError) as refused:
            async with limiter.admit(ADA, Account()):
                pass
        assert 50 <= refused.value.retry_after_s <= 61


async def test_servers_share_a_budget_of_tokens(link: RedisLink) -> None:
    one, two = (Limiter(link, concurrent_requests=0) for _ in range(2))
    assert await admitted(one, tokens=100)
    with pytest.raises(OverLimitError, match=r"ada .* 100 tokens .*24 hours"):
        async with two.admit(ADA, Account()):
            pass


@pytest.mark.parametrize("garbage", ["much", "", "1e9"])
async def test_a_counter_that_is_no_number_is_counted_anew(link: RedisLink, garbage: str) -> None:
    limiter = Limiter(link, concurrent_requests=0)
    assert await admitted(limiter, tokens=60)
    keys = await link.client.keys("qguide:limits:*")
    assert len(keys) == 2
    for key in keys:
        await link.client.set(key, garbage)
    assert [await admitted(limiter, tokens=60) for _ in range(3)] == [True, True, False]
    assert link.up
    for key in await link.client.keys("qguide:limits:*"):
        assert await link.client.pttl(key) > 0


async def test_garbage_in_one_counter_leaves_the_others_alone(link: RedisLink) -> None:
    limiter = Limiter(link, concurrent_requests=0)
    assert await admitted(limiter, tokens=100)
    [requests] = await link.client.keys("qguide:limits:*requests*")
    await link.client.delete(requests)
    await link.client.lpush(requests, "a", "list")
    assert not await admitted(limiter)  # the day's tokens are still used up
    assert link.up
