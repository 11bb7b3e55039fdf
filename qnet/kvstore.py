"""Prefixes whose keys and values are kept from one step to the next.

One entry per conversation, least recently used out first, within a byte budget. Entries are
found by the hashes of their token blocks and then compared token by token: a hash is a hint,
never a proof. An entry also keeps its branches, the candidates of its last step, so that the
step after the chosen one computes only the new observation.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from qnet.attention import Slab

_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Branch:
    """Tokens that follow an entry's prefix, and the columns that hold them."""

    token_ids: list[int]
    columns: list[int]


@dataclass(slots=True)
class Entry:
    """A prefix being extended; its slab's first columns are its tokens, in order."""

    slab: Slab = field(default_factory=Slab)
    token_ids: list[int] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    leased: bool = True
    _key: int | None = None
    _hashes: list[int] = field(default_factory=list)
    _nbytes: int = 0


class PrefixStore:
    """Least-recently-used prefixes of one model. Not thread-safe: the device thread owns it.

    Attributes:
        nbytes: of the prefixes kept.
        evictions: prefixes dropped so far because the budget was full.
    """

    def __init__(self, *, cache_bytes: int) -> None:
        self._budget = cache_bytes
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._by_block: dict[int, int] = {}
        self._next_key = 0
        self.nbytes = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._entries)

    def lease(self, token_ids: list[int], *, at_most: int) -> Entry:
        """The longest known prefix of `token_ids`, at most `at_most` tokens, to be extended.

        The entry itself where the tokens continue it and nobody holds it; else a copy of the
        shared columns. Give it back with `commit` or, after a failure, `discard`.
        """
        found = self._find(token_ids)
        if found is None:
            return Entry()
        shared = common_prefix(found.token_ids, token_ids)
        if found.leased or shared < len(found.token_ids):
            kept = min(shared, at_most)
            return Entry(found.slab.clone(kept), token_ids[:kept])
        self._forget(found)
        found.leased = True
        _follow_branch(found, token_ids)
        found.token_ids = found.token_ids[:at_most]
        self._hold(found)
        return found

    def commit(self, entry: Entry) -> None:
        """Keep what the entry holds now, as the most recently used."""
        self._forget(entry)
        entry.leased = False
        self._hold(entry)
        self._evict()

    def discard(self, entry: Entry) -> None:
        """Drop an entry whose columns cannot be trusted."""
        self._forget(entry)

    def clear(self) -> None:
        """Forget everything."""
        for entry in list(self._entries.values()):
            self._forget(entry)

    def _find(self, token_ids: list[int]) -> Entry | None:
        for block_hash in reversed(_block_hashes(token_ids)):
            key = self._by_block.get(block_hash)
            if key is not None and common_prefix(self._entries[key].token_ids, token_ids):
                return self._entries[key]
        return None

    def _hold(self, entry: Entry) -> None:
        self._next_key += 1
        entry._key = self._next_key
        entry._hashes = _block_hashes(entry.token_ids)
        entry._nbytes = entry.slab.nbytes
        self._entries[entry._key] = entry
        self._by_block.update(dict.fromkeys(entry._hashes, entry._key))
        self.nbytes += entry._nbytes

    def _forget(self, entry: Entry) -> None:
        if entry._key is None:
            return
        del self._entries[entry._key]
        self.nbytes -= entry._nbytes
        for block_hash in entry._hashes:
            if self._by_block.get(block_hash) == entry._key:
                del self._by_block[block_hash]
        entry._key = None

    def _evict(self) -> None:
        idle = [entry for entry in self._entries.values() if not entry.leased]
        for entry in idle:
            if self.nbytes <= self._budget:
                return
            self._forget(entry)
            self.evictions += 1


def common_prefix(one: list[int], other: list[int]) -> int:
    """How many leading tokens two lists share."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(i for i in range(shorter) if one[i] != other[i])


def _follow_branch(entry: Entry, token_ids: list[int]) -> None:
    """Make the branch that `token_ids` took part of the entry's prefix."""
    known = len(entry.token_ids)
    rest = token_ids[known:]
    best = max(entry.branches, key=lambda b: common_prefix(b.token_ids, rest), default=None)
    entry.branches = []
    if best is not None:
        shared = common_prefix(best.token_ids, rest)
        entry.slab.move(best.columns[:shared], known)
        entry.token_ids = token_ids[: known + shared]


def _block_hashes(token_ids: list[int]) -> list[int]:
    """A hash for each leading run of whole blocks, shortest first."""
    hashes: list[int] = []
    running = 0
    for start in range(0, len(token_ids) - _BLOCK + 1, _BLOCK):
        running = hash((running, *token_ids[start : start + _BLOCK]))
        hashes.append(running)
    return hashes
