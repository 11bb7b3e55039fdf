"""Store of episodes in Redis, shared by replicas, with a copy in memory.

    qguide:episodes:<hash>   hash: `state`, and the step records as `0`, `1`, …

A step reads the state and appends one record. Each replica also keeps its latest state of an episode and the records
until then in memory, of which it reads each once. So an episode that continues on the same replica loses nothing while
Redis is down, and its first step after that updates Redis.

The memory of all episodes has a budget, shared between keys, like that of a server's own memory: when it is exceeded,
the key that holds most loses its least recently used episode.

    qguide:episode-index:of:<owner>      episodes of a key, by the time of their last step
    qguide:episode-index:bytes:<owner>   their sizes
    qguide:episode-index:owners          keys, by the size of their episodes together
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Final, cast
from weakref import WeakValueDictionary

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import ResponseError, WatchError

from qguide.server.episodes.state import EpisodeChange, ServedEpisode, chained
from qguide.server.episodes.store import Change, MemoryEpisodeStore
from qguide.server.observability.request_context import owner_of
from qguide.server.redis.client import NAMESPACE, RedisLink

_INDEX: Final = f"{NAMESPACE}:episode-index"

# A script runs atomically in Redis, so that replicas do not count at the same time. Expired episodes are still in the
# index and are dropped first. The clock is Redis' own, because those of the replicas differ; it is in microseconds,
# because several steps fit into a millisecond. Values of another type under these names are deleted, so that no request
# fails because of them.
_SCRIPT: Final = """
local prefix, owner, episode = ARGV[1], ARGV[2], ARGV[3]
local size, most, ttl_ms = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local function typed(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then redis.call('DEL', key) end
  return key
end
local owners = typed(prefix .. ':owners', 'zset')
local function names(whose)
  return typed(prefix .. ':of:' .. whose, 'zset'), typed(prefix .. ':bytes:' .. whose, 'hash')
end
local function drop(whose, name)
  local index, sizes = names(whose)
  local held = tonumber(redis.call('HGET', sizes, name) or '0') or 0
  redis.call('ZREM', index, name)
  redis.call('HDEL', sizes, name)
  if redis.call('EXISTS', index) == 0 then
    redis.call('ZREM', owners, whose)
    redis.call('DEL', sizes)
    return 0
  end
  return tonumber(redis.call('ZINCRBY', owners, -held, whose))
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
drop(owner, episode)
local index, sizes = names(owner)
redis.call('ZADD', index, now, episode)
redis.call('HSET', sizes, episode, size)
redis.call('ZINCRBY', owners, size, owner)
for _, key in ipairs({index, sizes, owners}) do redis.call('PEXPIRE', key, ttl_ms) end

local total = 0
for _, whose in ipairs(redis.call('ZRANGE', owners, 0, -1)) do
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', (names(whose)), '-inf', now - 1000 * ttl_ms)) do
    drop(whose, old)
  end
  if redis.call('EXISTS', (names(whose))) == 0 then redis.call('ZREM', owners, whose) end
  total = total + tonumber(redis.call('ZSCORE', owners, whose) or '0')
end
while total > most do
  local whose = redis.call('ZREVRANGE', owners, 0, 0)[1]
  local oldest = redis.call('ZRANGE', (names(whose)), 0, 0)[1]
  local held = tonumber(redis.call('ZSCORE', owners, whose))
  redis.call('DEL', oldest)
  total = total - held + drop(whose, oldest)
end
"""
_CLAIM_S: Final = 60  # longer than recording takes; the claim of a replica that died expires
_STATE: Final = "state"
_Field = bytes | bytearray | memoryview | str | int | float  # values that redis-py takes in a hash


class RedisEpisodeStore:
    """Episodes as JSON in Redis, and in memory."""

    def __init__(self, link: RedisLink, own: MemoryEpisodeStore, *, max_bytes: int, ttl_s: float) -> None:
        self._link = link
        self._max_bytes = max_bytes  # memory for the episodes of all replicas; those beyond it are removed
        self._own = own
        self._ttl_ms = max(1, round(ttl_s * 1e3))
        # Requests of one server for one episode would only make each other start again.
        self._changing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def get(self, episode_id: str) -> ServedEpisode | None:
        """The episode, or None if it is unknown."""
        own = await self._own.get(episode_id)

        async def shared() -> ServedEpisode | None:
            return _later(await self._state(self._link.client, _name(episode_id)), own)

        async def alone() -> ServedEpisode | None:
            return own

        return await self._link.use(shared, alone)

    async def update(self, episode_id: str, change: Change) -> ServedEpisode:
        """Change an episode atomically, retrying if another replica changes it meanwhile."""
        async with self._changing.setdefault(episode_id, asyncio.Lock()):
            return await self._link.use(
                lambda: self._update_shared(episode_id, change),
                lambda: self._own.update(episode_id, change),
                repeatable=False,
            )

    async def records(self, episode_id: str) -> Sequence[bytes]:
        """The step records of an episode, in order; none if they are lost."""
        own, name = await self._own.get(episode_id), _name(episode_id)

        async def shared() -> Sequence[bytes]:
            known = await self._state(self._link.client, name)
            if known is None or _later(known, own) is own:
                return await self._own.records(episode_id)
            return await _read_records(self._link.client, name, range(known.records))

        return await self._link.use(shared, lambda: self._own.records(episode_id))

    @asynccontextmanager
    async def claimed(self, episode_id: str) -> AsyncIterator[bool]:
        """True if no other replica has claimed the episode; always true while Redis is down."""
        name = f"{_name(episode_id)}:claim"

        async def shared() -> bool:
            return bool(await self._link.client.set(name, b"", nx=True, ex=_CLAIM_S))

        async def give_back() -> bool:
            return bool(await self._link.client.delete(name))

        async def alone() -> bool:
            return True

        # Without Redis every replica has the claim: an episode that is recorded twice is better than one that is lost.
        mine = await self._link.use(shared, alone, repeatable=False)
        try:
            yield mine
        finally:
            if mine:
                await self._link.use(give_back, alone)  # without Redis the claim expires by itself

    async def _update_shared(self, episode_id: str, change: Change) -> ServedEpisode:
        name = _name(episode_id)
        async with self._link.client.pipeline() as pipe:
            while True:
                await pipe.watch(name)
                known, own = await self._state(pipe, name), await self._own.get(episode_id)
                latest = _later(known, own)
                changed = change(latest)
                # Redis has nothing, or other steps than this replica counted while it was down: all is written anew.
                if known is None or (own and latest is own and own.chain != known.chain):
                    copied, anew = True, await self._own.records(episode_id)
                else:
                    copied, anew = await self._catch_up(pipe, episode_id, known, own), None
                self._write(pipe, episode_id, changed, anew=anew)
                try:
                    await pipe.execute()
                except WatchError:
                    continue
                if copied:
                    self._own.put(episode_id, changed)
                else:
                    self._own.drop(episode_id)
                return changed.episode

    async def _catch_up(self, redis: Redis, episode_id: str, known: ServedEpisode, own: ServedEpisode | None) -> bool:
        """Copy the records in Redis that this replica lacks; False if it cannot have them all."""
        if own is not None and own.chain == known.chain:
            return True
        if known.record_bytes > self._own.max_bytes:
            return False
        copies = [(0, "")]
        if own is not None and own.records < known.records:
            copies.insert(0, (own.records, own.chain))
        for records, chain in copies:
            which = range(records, known.records)
            missed = await _read_records(redis, _name(episode_id), which)
            # The hash of all records tells whether ours and those that were read are one episode.
            if chained(chain, missed) == known.chain:  # else the copy is of other steps
                if not records:
                    self._own.drop(episode_id)
                self._own.put(episode_id, EpisodeChange(known), before=missed)
                return True
        return False

    def _write(self, pipe: Pipeline, episode_id: str, changed: EpisodeChange, *, anew: Sequence[bytes] | None) -> None:
        """Add the writing of a change to the transaction.

        Args:
            anew: all earlier records, where those in Redis are not these; None appends.
        """
        name, episode = _name(episode_id), changed.episode
        row = episode.to_json()
        fields: dict[_Field, _Field] = {_STATE: row}
        if episode.records:
            fields |= {str(number): record for number, record in enumerate(anew or ())}
        if changed.record is not None:
            fields[str(episode.records - 1)] = changed.record
        pipe.multi()  # type: ignore[no-untyped-call]
        if anew is not None or not episode.records:
            pipe.delete(name)
        pipe.hset(name, mapping=fields)
        pipe.pexpire(name, self._ttl_ms)
        owner, size = sha256(owner_of(episode_id).encode()).hexdigest(), len(row) + episode.record_bytes
        pipe.eval(_SCRIPT, 0, _INDEX, owner, name, size, self._max_bytes, self._ttl_ms)

    async def _state(self, redis: Redis, name: str) -> ServedEpisode | None:
        """The state in Redis; None if there is none, or none that this version can read."""
        try:
            row = await redis.hget(name, _STATE)
        except ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            row = b""
        return self._link.read(cast("bytes | None", row), ServedEpisode.model_validate_json)


async def _read_records(redis: Redis, name: str, which: range) -> list[bytes]:
    """The records of these steps; none if one of them is missing."""
    rows = await redis.hmget(name, [str(number) for number in which]) if which else []
    return [] if None in rows else cast("list[bytes]", rows)


def _later(shared: ServedEpisode | None, own: ServedEpisode | None) -> ServedEpisode | None:
    """The more advanced of two states of an episode; on a tie the one in Redis."""
    if shared is None or own is None:
        return shared or own
    # An end outweighs any number of steps: a closed episode must not open again.
    # So does a step with tools, at which those without were forgotten.
    return max(shared, own, key=lambda one: (one.outcome is not None, one.recorded, one.tools, one.steps))


def _name(episode_id: str) -> str:
    return f"{NAMESPACE}:episodes:{sha256(episode_id.encode()).hexdigest()}"
