"""Prefixes are found, shared, followed and forgotten."""

import pytest
import torch

from qguide.qnet.engine.prefix_cache import Branch, Entry, PrefixCache

BYTES_PER_SLAB = 2 * 256 * 4

TASK = list(range(1000, 1300))
"""Long enough to be shared."""


def fill(entry: Entry, token_ids: list[int]) -> None:
    """Write each token's own id as its key and value."""
    entry.buffer.reserve(len(token_ids))
    known = len(entry.token_ids)
    new = torch.tensor(token_ids[known:], dtype=torch.float32).reshape(1, -1, 1)
    entry.buffer.write(0, known, new, new)
    entry.token_ids = token_ids


def columns(entry: Entry) -> list[int]:
    parts = entry.buffer.seen(0, range(len(entry.token_ids)))
    return [int(key) for keys, _ in parts for key in keys[0, :, 0]]


def stored(store: PrefixCache, token_ids: list[int], *branches: list[int]) -> Entry:
    entry = store.lease(token_ids, at_most=len(token_ids))
    fill(entry, token_ids)
    column = len(token_ids)
    for branch in branches:
        end = column + len(branch)
        entry.buffer.reserve(end)
        new = torch.tensor(branch, dtype=torch.float32).reshape(1, -1, 1)
        entry.buffer.write(0, column, new, new)
        entry.branches.append(Branch(branch, list(range(column, end))))
        column = end
    store.commit(entry)
    return entry


@pytest.fixture
def store() -> PrefixCache:
    return PrefixCache(cache_bytes=10 * BYTES_PER_SLAB)


def test_an_unknown_history_starts_empty(store: PrefixCache) -> None:
    assert store.lease(list(range(40)), at_most=40).token_ids == []


def test_a_longer_history_continues_the_known_one(store: PrefixCache) -> None:
    first = stored(store, list(range(40)))
    again = store.lease(list(range(60)), at_most=60)
    assert again is first
    assert columns(again) == list(range(40))


def test_the_branch_that_was_taken_becomes_part_of_the_prefix(store: PrefixCache) -> None:
    stored(store, list(range(40)), [50, 51, 52], [50, 61, 62, 63])
    entry = store.lease([*range(40), 50, 61, 62, 99, 98], at_most=45)
    assert columns(entry) == [*range(40), 50, 61, 62]


def test_a_history_that_leaves_the_known_one_early_gets_a_copy(store: PrefixCache) -> None:
    kept = stored(store, list(range(40)))
    other = store.lease([*range(30), 77, 78], at_most=32)
    fill(other, [*range(30), 77, 78])
    assert columns(kept) == list(range(40))
    assert columns(other) == [*range(30), 77, 78]


def test_a_held_entry_is_copied_not_shared(store: PrefixCache) -> None:
    stored(store, list(range(40)), [50], [60])
    first = store.lease([*range(40), 50, 1], at_most=42)
    second = store.lease([*range(40), 60, 2], at_most=42)
    assert first.buffer is not second.buffer
    assert columns(first) == [*range(40), 50]
    assert columns(second) == list(range(40))


def test_two_continuations_at_once_do_not_write_into_each_other(store: PrefixCache) -> None:
    stored(store, list(range(40)))
    one, other = ([*range(40), *new] for new in ([71, 72], [81, 82]))
    entries = [store.lease(token_ids, at_most=42) for token_ids in (one, other)]
    for entry, token_ids in zip(entries, (one, other), strict=True):
        fill(entry, token_ids)
    assert [columns(entry) for entry in entries] == [one, other]


def test_the_last_tokens_can_be_asked_for_again(store: PrefixCache) -> None:
    first = stored(store, list(range(40)))
    again = store.lease(list(range(40)), at_most=39)
    assert again is first
    assert again.token_ids == list(range(39))


@pytest.mark.parametrize("beginning", [[], [7, 8, 9], TASK], ids=["nothing", "little", "much"])
def test_each_of_many_conversations_with_one_task_finds_its_own(beginning: list[int]) -> None:
    store = PrefixCache(cache_bytes=10**7)
    entries = [store.lease([*beginning, 1], at_most=len(beginning) + 1) for _ in range(64)]
    for n, entry in enumerate(entries):
        fill(entry, [*beginning, 1])
        entry.buffer.reserve(len(beginning) + 2)
        entry.buffer.write(0, len(beginning) + 1, *[torch.full((1, 1, 1), 100.0 + n)] * 2)
        entry.branches = [Branch([100 + n], [len(beginning) + 1])]
        store.commit(entry)
    for n, entry in enumerate(entries):
        again = store.lease([*beginning, 1, 100 + n, 5], at_most=len(beginning) + 3)
        assert again is entry
        assert columns(again) == [*beginning, 1, 100 + n]
    store.clear()
    assert store.nbytes == 0


def test_the_least_recently_used_is_forgotten_first() -> None:
    store = PrefixCache(cache_bytes=2 * BYTES_PER_SLAB)
    for start in (100, 200):
        stored(store, list(range(start, start + 20)))
    stored(store, list(range(100, 120)))
    stored(store, list(range(300, 320)))
    known = [start for start in (100, 200, 300) if store.lease(list(range(start, start + 20)), at_most=20).token_ids]
    assert known == [100, 300]
    assert store.nbytes == 2 * BYTES_PER_SLAB
    assert store.evictions == 1


def test_what_was_cleared_is_gone(store: PrefixCache) -> None:
    stored(store, list(range(40)))
    store.clear()
    assert (len(store), store.nbytes) == (0, 0)
    assert store.lease(list(range(40)), at_most=40).token_ids == []


def test_of_conversations_with_equal_blocks_the_one_that_goes_on_is_found(store: PrefixCache) -> None:
    entries = [stored(store, [*range(40), n], [60 + n], [70 + n]) for n in (1, 2, 3)]
    for n, entry in zip((1, 2, 3), entries, strict=True):
        assert store.lease([*range(40), n, 70 + n, 5], at_most=43) is entry
        assert columns(entry) == [*range(40), n, 70 + n]


def test_of_equal_histories_the_one_whose_branch_was_taken_is_found(store: PrefixCache) -> None:
    one, other = (store.lease(list(range(40)), at_most=40) for _ in range(2))
    for entry, branch in ((one, 50), (other, 60)):
        fill(entry, list(range(40)))
        entry.buffer.reserve(41)
        entry.buffer.write(0, 40, *[torch.full((1, 1, 1), float(branch))] * 2)
        entry.branches = [Branch([branch], [40])]
        store.commit(entry)
    for entry, branch in ((one, 50), (other, 60)):
        assert store.lease([*range(40), branch, 7], at_most=42) is entry
        assert columns(entry) == [*range(40), branch]


def test_conversations_that_begin_alike_keep_their_beginning_once() -> None:
    store = PrefixCache(cache_bytes=10**6)
    entries = [stored(store, [*TASK, *range(n, n + 20)]) for n in (0, 100, 200)]
    assert [columns(entry)[-20:] for entry in entries] == [list(range(n, n + 20)) for n in (0, 100, 200)]
    assert all(columns(entry)[:300] == TASK for entry in entries)
    assert len({id(entry.buffer.base) for entry in entries}) == 1
    own = sum(entry.buffer.nbytes for entry in entries)
    assert store.nbytes == own + 2 * 300 * 4
    store.clear()
    assert store.nbytes == 0


def test_a_shared_beginning_stays_until_its_last_conversation_goes() -> None:
    store = PrefixCache(cache_bytes=10**6)
    for n in (0, 100):
        stored(store, [*TASK, *range(n, n + 20)])
    assert store.nbytes > 2 * 300 * 4
    first = store.lease([*TASK, *range(20), 7], at_most=321)
    store.discard(first)
    assert columns(store.lease([*TASK, 7], at_most=301)) == TASK
    second = store.lease([*TASK, *range(100, 120), 7], at_most=321)
    assert columns(second) == [*TASK, *range(100, 120)]
    store.discard(second)
    assert store.nbytes == 0


def test_who_computes_a_shared_token_again_writes_into_a_copy(store: PrefixCache) -> None:
    other = stored(store, [*TASK, 1, 2, 3])
    alike = stored(store, TASK)
    again = store.lease(TASK, at_most=299)
    assert again is alike
    new = torch.full((1, 1, 1), -1.0)
    again.buffer.write(0, 299, new, new)
    again.token_ids = TASK
    assert columns(again) == [*TASK[:-1], -1]
    assert columns(other) == [*TASK, 1, 2, 3]
    nothing = store.lease(TASK, at_most=0)
    assert columns(nothing) == []


def test_what_two_share_beyond_the_others_is_shared_by_these_two() -> None:
    store = PrefixCache(cache_bytes=10**6)
    stored(store, [*TASK, 1])
    longer = [*TASK, *range(100)]
    one, other = (stored(store, [*longer, n]) for n in (500, 600))
    assert one.buffer.base is other.buffer.base
    assert columns(one) == [*longer, 500]
    assert columns(other) == [*longer, 600]
    short = stored(store, [*TASK[:200], 9])
    assert columns(short) == [*TASK[:200], 9]
    store.clear()
    assert store.nbytes == 0


def test_a_branch_is_followed_behind_a_shared_beginning(store: PrefixCache) -> None:
    stored(store, [*TASK, 1])
    stored(store, [*TASK, 2], [50, 51, 52], [50, 61, 62, 63])
    entry = store.lease([*TASK, 2, 50, 61, 62, 99], at_most=305)
    assert columns(entry) == [*TASK, 2, 50, 61, 62]


def test_what_is_given_back_to_be_leased_at_once_is_not_evicted_before() -> None:
    store = PrefixCache(cache_bytes=0)
    entry = store.lease(TASK, at_most=300)
    fill(entry, TASK)
    store.add(entry)
    again = store.lease([*TASK, 1], at_most=301)
    assert again is entry
    store.commit(again)
    assert (len(store), store.nbytes) == (0, 0)
