"""A budget of Redis' memory for episodes, shared by keys.

    qguide:episode-index:of:<owner>      episodes of a key, by the time of their last step
    qguide:episode-index:bytes:<owner>   their sizes
    qguide:episode-index:owners          keys, by the size of their episodes together

It works as the budget in a server's memory does: where all together are too large, the key that
holds most loses its episode untouched for longest.
"""

from hashlib import sha256
from typing import Final

from redis.asyncio.client import Pipeline

from server.context.request_context import owner_of
from server.redis.client import NAMESPACE

_INDEX: Final = f"{NAMESPACE}:episode-index"

# In Redis itself, so that no two servers count at once. Episodes that have expired are still in
# the index: they are dropped first. The clock is Redis' own, because servers' clocks differ. What
# somebody else wrote under these names is removed: no request may fail of it.
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
local now = time[1] * 1000 + math.floor(time[2] / 1000)
drop(owner, episode)
local index, sizes = names(owner)
redis.call('ZADD', index, now, episode)
redis.call('HSET', sizes, episode, size)
redis.call('ZINCRBY', owners, size, owner)
for _, key in ipairs({index, sizes, owners}) do redis.call('PEXPIRE', key, ttl_ms) end

local total = 0
for _, whose in ipairs(redis.call('ZRANGE', owners, 0, -1)) do
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', (names(whose)), '-inf', now - ttl_ms)) do
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
    """Counts the episodes of all servers, and removes those beyond the budget.

    Args:
        max_bytes: of all together.
        ttl_s: an episode untouched for longer is gone.
    """

    def __init__(self, *, max_bytes: int, ttl_s: float) -> None:
        self._max_bytes = max_bytes
        self._ttl_ms = max(1, round(ttl_s * 1e3))

    def count(self, pipe: Pipeline, episode_id: str, *, name: str, size: int) -> None:
        """Add to a transaction that writes an episode what keeps it within the budget.

        Args:
            name: the episode's in Redis.
            size: its bytes there.
        """
        owner = sha256(owner_of(episode_id).encode()).hexdigest()
        pipe.eval(_SCRIPT, 0, _INDEX, owner, name, size, self._max_bytes, self._ttl_ms)
