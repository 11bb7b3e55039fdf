"""Prefix cache: keys and values of histories, kept from one step to the next.

One entry per conversation, least recently used out first, within a byte budget. Conversations that begin alike share
those columns. A radix tree over their tokens finds them, one tree for each cache salt. An entry also keeps its
branches, the candidates of its last step, so that the step after the chosen one computes only the new observation.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from qguide.qnet.engine.kv_buffer import KVBuffer
from qguide.qnet.engine.token_trie import common_prefix

SHARED_TOKENS = 64
"""The shortest beginning that is worth sharing; less is copied, or computed again."""

_LEAST_COPIED = 16
_MOST_COMPARED = 256


@dataclass(frozen=True, slots=True)
class Branch:
    """Tokens that follow an entry's prefix, and the columns that hold them."""

    token_ids: list[int]
    columns: list[int]


@dataclass(slots=True)
class Entry:
    """A prefix being extended; its buffer's first columns are its tokens, in order.

    Attributes:
        cache_salt: only requests with the same salt may find it.
        fresh_tokens: how many of its tokens were computed for the present lease.
    """

    buffer: KVBuffer = field(default_factory=KVBuffer)
    token_ids: list[int] = field(default_factory=list)
    cache_salt: str = ""
    branches: list[Branch] = field(default_factory=list)
    leased: bool = True
    fresh_tokens: int = 0
    _key: int | None = None
    _paths: list[list[int]] = field(default_factory=list)
    _nbytes: int = 0
    _base: KVBuffer | None = None

    @property
    def cached_tokens(self) -> int:
        """The number of its tokens that were known before the present lease."""
        return len(self.token_ids) - self.fresh_tokens


class PrefixCache:
    """Least-recently-used prefixes of one model. Not thread-safe: the device thread owns it.

    Attributes:
        nbytes: of the prefixes kept; what several share counts once.
        copied: bytes of copies that were made of leased prefixes and still exist.
    """

    def __init__(self, *, cache_bytes: int) -> None:
        self._budget = cache_bytes
        # Not an `LRUCache`: leased entries stay, and columns that several share count once.
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        # A tree of its own for each salt: a shared one would tell by its matches, as the number of
        # cached tokens does, what somebody else's prompts begin with.
        self._trees: defaultdict[str, RadixTree] = defaultdict(RadixTree)
        self._sharing: dict[int, int] = {}
        self._next_key = 0
        self.nbytes = 0
        self.copied = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._entries)

    def lease(self, token_ids: list[int], *, at_most: int, cache_salt: str = "") -> Entry:
        """The longest known prefix of `token_ids`, at most `at_most` tokens, to be extended.

        The entry itself where the tokens continue it and it is not leased; else a new one that
        shares its columns. Give it back with `commit` or, after a failure, `discard`.
        """
        found = self._find(token_ids, cache_salt)
        if found is None:
            return Entry(cache_salt=cache_salt)
        shared = common_prefix(found.token_ids, token_ids)
        if found.leased or shared < len(found.token_ids):
            kept = min(shared, at_most)
            self._forget(found)
            # Forgotten before and held again after it: forking may move columns into a base, which is counted apart.
            fork = found.buffer.fork(kept, copied=SHARED_TOKENS - 1)
            self._hold(found)
            return Entry(fork, token_ids[:kept], cache_salt)
        self._forget(found)
        found.leased = True
        _follow_branch(found, token_ids)
        found.token_ids = found.token_ids[:at_most]
        # What follows is written to columns that a shared base may hold.
        found.buffer.make_writable(len(found.token_ids))
        self._hold(found)
        return found

    def lacks(self, token_ids: list[int], *, cache_salt: str = "") -> bool:
        """True if these tokens should be computed once for several histories with this prefix."""
        found = self._find(token_ids, cache_salt)
        known = 0 if found is None else common_prefix(found.token_ids, token_ids)
        return len(token_ids) - known >= SHARED_TOKENS

    def add(self, entry: Entry) -> None:
        """Give an entry back, to be leased again at once: nothing is evicted for it yet."""
        self._forget(entry)
        entry.leased, entry.fresh_tokens = False, 0
        self._hold(entry)

    def commit(self, entry: Entry) -> None:
        """Keep what the entry holds now, as the most recently used."""
        self.add(entry)
        self._evict()

    def discard(self, entry: Entry) -> None:
        """Drop an entry whose columns cannot be trusted."""
        self._forget(entry)

    @property
    def room_for_copies(self) -> int:
        """Most bytes of another copy: copies are as large as their originals, so half is for them."""
        return max(0, self._budget // 2 - self.copied)

    @contextmanager
    def copying(self, nbytes: int) -> Iterator[None]:
        """Make room for copies of leased prefixes until the block ends."""
        self.copied += nbytes
        self._evict()
        try:
            yield
        finally:
            self.copied -= nbytes

    def clear(self) -> None:
        """Forget everything."""
        for entry in list(self._entries.values()):
            self._forget(entry)

    def _find(self, token_ids: list[int], cache_salt: str) -> Entry | None:
        """The entry with the longest matching prefix; of several, one that need not be copied."""
        if cache_salt not in self._trees:
            return None
        shared, holders = self._trees[cache_salt].find(token_ids)
        # The newest alone: a system prompt may be the beginning of thousands.
        alike = [self._entries[key] for key in islice(reversed(holders), _MOST_COMPARED)]
        found = max(alike, key=lambda e: _extends_unleased(e, shared), default=None)
        if found is None or (shared < _LEAST_COPIED and not _extends_unleased(found, shared)):
            return None
        return found

    def _hold(self, entry: Entry) -> None:
        self._next_key += 1
        entry._key = self._next_key
        # By its branches, because the next history of the conversation runs through one of them.
        entry._paths = [entry.token_ids + b.token_ids for b in entry.branches] or [entry.token_ids]
        entry._nbytes = entry.buffer.nbytes
        self._entries[entry._key] = entry
        for path in entry._paths:
            self._trees[entry.cache_salt].add(path, entry._key)
        self.nbytes += entry._nbytes
        entry._base = entry.buffer.base
        if entry._base is not None:
            holders = self._sharing.get(id(entry._base), 0)
            self._sharing[id(entry._base)] = holders + 1
            self.nbytes += 0 if holders else entry._base.nbytes

    def _forget(self, entry: Entry) -> None:
        if entry._key is None:
            return
        del self._entries[entry._key]
        self.nbytes -= entry._nbytes
        if entry._base is not None:
            self._sharing[id(entry._base)] -= 1
            if not self._sharing[id(entry._base)]:
                del self._sharing[id(entry._base)]
                self.nbytes -= entry._base.nbytes
            entry._base = None
        tree = self._trees[entry.cache_salt]
        for path in entry._paths:
            tree.remove(path, entry._key)
        if not tree:
            del self._trees[entry.cache_salt]
        entry._key = None

    def _evict(self) -> None:
        while self.nbytes + self.copied > self._budget:
            idle = next((entry for entry in self._entries.values() if not entry.leased), None)
            if idle is None:
                return
            self._forget(idle)
            self.evictions += 1


def _extends_unleased(entry: Entry, shared: int) -> bool:
    """True if the entry is not leased and its whole prefix matches."""
    return not entry.leased and len(entry.token_ids) <= shared


def _follow_branch(entry: Entry, token_ids: list[int]) -> None:
    """Extend the entry's prefix by the branch that `token_ids` follows."""
    known = len(entry.token_ids)
    rest = token_ids[known:]
    best = max(entry.branches, key=lambda b: common_prefix(b.token_ids, rest), default=None)
    entry.branches = []
    if best is not None:
        shared = common_prefix(best.token_ids, rest)
        entry.buffer.move(best.columns[:shared], known)
        entry.token_ids = token_ids[: known + shared]


@dataclass(slots=True)
class _Node:
    """Tokens that come after the parent's, and how many sequences of each holder have them."""

    token_ids: list[int]
    holders: dict[int, int] = field(default_factory=dict)
    children: dict[int, "_Node"] = field(default_factory=dict)


class RadixTree:
    """Sequences by holder; a holder may have several, and the same one more than once."""

    def __init__(self) -> None:
        self._root = _Node([])

    def __bool__(self) -> bool:
        return bool(self._root.children)

    def add(self, token_ids: Sequence[int], holder: int) -> None:
        """Add a sequence of a holder."""
        node, at = self._root, 0
        while at < len(token_ids):
            child = node.children.get(token_ids[at])
            if child is None:
                child = node.children[token_ids[at]] = _Node(list(token_ids[at:]))
            shared = _shared(child.token_ids, token_ids, at)
            if shared < len(child.token_ids):
                child = _split(node, child, shared)
            child.holders[holder] = child.holders.get(holder, 0) + 1
            node, at = child, at + shared

    def remove(self, token_ids: Sequence[int], holder: int) -> None:
        """Remove a sequence of a holder, which was added before."""
        path, at = [self._root], 0
        while at < len(token_ids):
            child = path[-1].children[token_ids[at]]
            child.holders[holder] -= 1
            if not child.holders[holder]:
                del child.holders[holder]
            # Nobody holds what is below, either: whoever does is counted here as well.
            if not child.holders:
                del path[-1].children[token_ids[at]]
                break
            path.append(child)
            at += len(child.token_ids)
        # From below: a node that was joined to its child may now be its parent's only one.
        for node in reversed(path[1:]):
            _join_only_child(node)

    def find(self, token_ids: Sequence[int]) -> tuple[int, Mapping[int, int]]:
        """Length of the longest shared prefix, and its holders, the latest last."""
        node, at = self._root, 0
        while at < len(token_ids):
            child = node.children.get(token_ids[at])
            if child is None:
                break
            shared = _shared(child.token_ids, token_ids, at)
            node, at = child, at + shared
            if shared < len(child.token_ids):
                break
        return at, node.holders

    def find_whole(self, token_ids: Sequence[int]) -> int | None:
        """The holder of the longest sequence that these tokens begin with, the latest of several.

        It is for holders of one sequence each.
        """
        node, at, found = self._root, 0, None
        while at < len(token_ids):
            child = node.children.get(token_ids[at])
            if child is None or _shared(child.token_ids, token_ids, at) < len(child.token_ids):
                break
            node, at = child, at + len(child.token_ids)
            longer = {holder for below in node.children.values() for holder in below.holders}
            found = next((h for h in reversed(node.holders) if h not in longer), found)
        return found


def _shared(edge: list[int], token_ids: Sequence[int], at: int) -> int:
    return common_prefix(edge, token_ids[at : at + len(edge)])


def _split(parent: _Node, node: _Node, at: int) -> _Node:
    """Cut a node in two; returns the upper one."""
    upper = _Node(node.token_ids[:at], dict(node.holders), {node.token_ids[at]: node})
    node.token_ids = node.token_ids[at:]
    parent.children[upper.token_ids[0]] = upper
    return upper


def _join_only_child(node: _Node) -> None:
    """Undo a split that no sequence needs any more."""
    if len(node.children) != 1 or not node.token_ids:
        return
    [child] = node.children.values()
    if child.holders == node.holders:
        node.token_ids = node.token_ids + child.token_ids
        node.children = child.children
