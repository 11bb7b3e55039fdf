"""Backpressure of a hosted policy: a bound on the tokens in flight at each replica.

A replica that gets more sequences than its KV cache holds preempts some and computes them again.
Requests differ in length by a factor of a hundred, so a bound on their number does not prevent it.

The replica of a session is known from its last answer, if a router names it (`X-Replica`, see
docker/cluster/router.conf). A session that has had no answer may go to any of them and counts at
each; without a router's word all do, and the bound is that of the address.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from qguide.qnet.device.scoring_worker import CHARACTERS_PER_TOKEN
from qguide.qnet.types import History

_ANY: Final = ""


@dataclass(slots=True, eq=False)
class _Asking:
    """A request that waits or is in flight."""

    session: str
    tokens: int
    replica: str = _ANY
    admitted: asyncio.Event = field(default_factory=asyncio.Event)


class TokenBudget:
    """Admits requests in the order in which they came, as far as the bound of a replica allows.

    A request that does not fit holds back those behind it that could go to its replica, so that
    short ones do not keep a long one waiting for ever; requests to other replicas pass. One that is
    longer than the bound goes when nothing else is in flight at its replica. Not thread-safe.
    """

    def __init__(self, most_tokens: int) -> None:
        self._most = most_tokens
        self._in_flight: Counter[str] = Counter()
        self._replicas: dict[str, str] = {}
        self._waiting: list[_Asking] = []

    @asynccontextmanager
    async def hold(self, session: str, tokens: int) -> AsyncIterator[None]:
        """Wait until the tokens fit, and count them as in flight within the block."""
        asking = _Asking(session, tokens)
        self._waiting.append(asking)
        self._admit()
        try:
            await asking.admitted.wait()
            yield
        finally:
            if asking in self._waiting:  # cancelled before its turn
                self._waiting.remove(asking)
            else:
                self._in_flight[asking.replica] -= asking.tokens
                self._in_flight += Counter[str]()  # drops what is zero
            self._admit()

    def learn(self, session: str, replica: str) -> None:
        """Note which replica answered a session, whose next requests are counted there; "" of either tells nothing."""
        if session and replica:
            self._replicas[session] = replica

    def _admit(self) -> None:
        held_back: set[str] = set()
        for asking in tuple(self._waiting):
            replica = self._replicas.get(asking.session, _ANY)
            if held_back and (replica == _ANY or not held_back.isdisjoint({replica, _ANY})):
                held_back.add(replica)
            elif self._fits(replica, asking.tokens):
                self._waiting.remove(asking)
                asking.replica = replica
                self._in_flight[replica] += asking.tokens
                asking.admitted.set()
            else:
                held_back.add(replica)

    def _fits(self, replica: str, tokens: int) -> bool:
        in_flight = self._in_flight
        known = [in_flight[replica]] if replica else [in_flight[each] for each in in_flight if each]
        load = in_flight[_ANY] + max(known, default=0)
        return load == 0 or load + tokens <= self._most


def tokens_of(history: History, *, n: int, max_tokens: int) -> int:
    """Most tokens that a request for `n` candidates holds: prompt + n * max_tokens.

    The prompt, which the candidates share, is estimated from its characters.
    """
    characters = sum(len(message.text) for message in history)
    return 1 + characters // CHARACTERS_PER_TOKEN + n * max_tokens
