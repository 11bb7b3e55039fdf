"""Memory budget for episodes in Redis, shared between keys.

    qguide:episode-index:of:<owner>      episodes of a key, by the time of their last step
    qguide:episode-index:bytes:<owner>   their sizes
    qguide:episode-index:owners          keys, by the size of their episodes together

It works like the budget of a server's memory: when it is exceeded, the key that holds most loses
its least recently used episode.
"""

from hashlib import sha256
from typing import Final

from redis.asyncio.client import Pipeline

from qguide.server.observability.request_context import owner_of
from qguide.server.redis.client import NAMESPACE

_INDEX: Final = f"{NAMESPACE}:episode-index"

# A script runs atomically in Redis, so that replicas do not count at the same time. Expired
# episodes are still in the index and are dropped first. The clock is Redis' own, because those of
# the replicas differ; it is in microseconds, because several steps fit into a millisecond. Values
# of another type under these names are deleted, so that no request fails because of them.
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


class RedisEpisodeBudget:
    """Counts the episodes of all replicas, and removes those beyond the budget.

    Args:
        max_bytes: memory for all episodes.
        ttl_s: time without a step after which an episode expires.
    """

    def __init__(self, *, max_bytes: int, ttl_s: float) -> None:
        self._max_bytes = max_bytes
        self._ttl_ms = max(1, round(ttl_s * 1e3))

    def count(self, pipe: Pipeline, episode_id: str, *, name: str, size: int) -> None:
        """Add the counting of an episode to the transaction that writes it.

        Args:
            name: key of the episode in Redis.
            size: size of the episode in bytes.
        """
        owner = sha256(owner_of(episode_id).encode()).hexdigest()
        pipe.eval(_SCRIPT, 0, _INDEX, owner, name, size, self._max_bytes, self._ttl_ms)
