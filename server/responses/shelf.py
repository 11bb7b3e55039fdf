"""Shelf of stored JSON objects by name, per key and for a limited time: in Redis or in memory."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Final, TypeVar, cast

from cachetools import TTLCache

from qguide.qnet.dialects.shapes import Json
from qguide.qnet.turns import rested
from qguide.server.http.errors import BodyTooLargeError
from qguide.server.http.long_bodies import LONG_BYTES, LongBodies
from qguide.server.observability.request_context import current_account, scoped_episode_id
from qguide.server.redis.client import NAMESPACE, RedisLink

T = TypeVar("T")

_ROOM: Final = 4  # rows hold more than the items that they stand for: tools, instructions, candidates not taken


@dataclass(slots=True)
class Shelf:
    """JSON objects by name: in Redis, or in memory without it and while it is down.

    Names are scoped by the caller's key, so that no key reads another's. Long rows are read and written in the thread
    of long bodies.
    """

    link: RedisLink | None
    bodies: LongBodies
    max_bytes: int  # memory of all rows that are not in Redis; the key that holds most gives way
    max_body_bytes: int  # of a request; the rows that one continues may be several times as large
    ttl_s: float
    _own: dict[str, TTLCache[str, bytes]] = field(default_factory=dict)

    @property
    def is_shared(self) -> bool:
        """True if other servers have the same objects."""
        return self.link is not None

    async def apart(self, work: Callable[[], T], *, size: int) -> T:
        """The result of work on so many bytes, which must not keep the event loop for long."""
        if size <= LONG_BYTES:
            return work()
        return await self.bodies.work(current_account().key or "", work)

    async def get(self, names: Sequence[str]) -> list[Json | None]:
        """The objects of these names; None for one that is unknown or has expired."""
        places = [_place(name) for name in names]

        async def alone() -> list[bytes | None]:
            mine = self._own.get(current_account().key or "")
            return [None if mine is None else mine.get(place) for place in places]

        async def shared() -> list[bytes | None]:
            assert self.link is not None
            return cast("list[bytes | None]", await self.link.client.mget(places))

        rows = await (self.link.use(shared, alone) if self.link and places else alone())
        size = sum(len(row) for row in rows if row is not None)
        if size > (most := _ROOM * self.max_body_bytes):
            raise BodyTooLargeError(most)
        read = partial(json.loads, object_hook=rested)
        return await self.apart(lambda: [None if row is None else read(row) for row in rows], size=size)

    async def put(self, objects: Callable[[], Mapping[str, Json]], *, size: int) -> None:
        """Keep objects, replacing earlier ones; one that exceeds the whole memory is not kept."""
        rows = await self.apart(
            lambda: {_place(name): json.dumps(one).encode() for name, one in objects().items()}, size=size
        )

        async def alone() -> None:
            self._keep({k: row for k, row in rows.items() if len(row) <= self.max_bytes})

        async def shared() -> None:
            assert self.link is not None
            async with self.link.client.pipeline() as pipe:
                for place, row in rows.items():
                    pipe.set(place, row, px=max(1, round(self.ttl_s * 1e3)))
                await pipe.execute()

        await (self.link.use(shared, alone) if self.link else alone())

    async def drop(self, name: str) -> None:
        """Forget an object."""

        async def alone() -> None:
            self.pop(name)

        async def shared() -> None:
            assert self.link is not None
            await self.link.client.delete(_place(name))

        await (self.link.use(shared, alone) if self.link else alone())

    def pop(self, name: str) -> None:
        """Forget an object that is in memory."""
        if (mine := self._own.get(current_account().key or "")) is not None:
            mine.pop(_place(name), None)

    def _keep(self, rows: Mapping[str, bytes]) -> None:
        """Keep rows in memory; the oldest of the key that holds most make room for them."""
        empty: TTLCache[str, bytes] = TTLCache(self.max_bytes, self.ttl_s, getsizeof=len)
        self._own.setdefault(current_account().key or "", empty).update(rows)
        while sum(held.currsize for held in self._own.values()) > self.max_bytes:
            max(self._own.values(), key=lambda held: held.currsize).popitem()
        self._own = {key: held for key, held in self._own.items() if held.currsize}


def _place(name: str) -> str:
    scoped = sha256(scoped_episode_id(name).encode(errors="surrogatepass")).hexdigest()
    return f"{NAMESPACE}:responses:{scoped}"


def row_of(previous: str) -> str:
    """Name of the response that `ID` or `ID.N` continues."""
    return f"response {previous.partition('.')[0]}"


def rows_of(response: Json, own: list[Json], chain: list[str], others: Mapping[str, list[Json]]) -> dict[str, Json]:
    """The rows that are kept of a response, by their names."""
    record = {"response": response, "input": own, "chain": chain, "others": others}
    items = (item for item in (*own, *response["output"]) if item.get("id"))
    of_items = {f"item {item['id']}": {"response": response["id"]} for item in items}
    return {f"response {response['id']}": record} | of_items
