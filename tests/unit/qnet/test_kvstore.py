"""Prefixes are found, shared, followed and forgotten."""

import pytest
import torch

from qnet.kvstore import Branch, Entry, PrefixStore, common_prefix

BYTES_PER_SLAB = 2 * 256 * 4


def fill(entry: Entry, token_ids: list[int]) -> None:
    """Write each token's own id as its key and value."""
    entry.slab.reserve(len(token_ids))
    known = len(entry.token_ids)
    new = torch.tensor(token_ids[known:], dtype=torch.float32).reshape(1, -1, 1)
    entry.slab.write(0, known, new, new)
    entry.token_ids = token_ids


def columns(entry: Entry) -> list[int]:
    return entry.slab.keys[0][0, : len(entry.token_ids), 0].int().tolist()


def stored(store: PrefixStore, token_ids: list[int], *branches: list[int]) -> Entry:
    entry = store.lease(token_ids, at_most=len(token_ids))
    fill(entry, token_ids)
    column = len(token_ids)
    for branch in branches:
        end = column + len(branch)
        entry.slab.reserve(end)
        new = torch.tensor(branch, dtype=torch.float32).reshape(1, -1, 1)
        entry.slab.write(0, column, new, new)
        entry.branches.append(Branch(branch, list(range(column, end))))
        column = end
    store.commit(entry)
    return entry


@pytest.fixture
def store() -> PrefixStore:
    return PrefixStore(cache_bytes=10 * BYTES_PER_SLAB)


def test_an_unknown_history_starts_empty(store: PrefixStore) -> None:
    assert store.lease(list(range(40)), at_most=40).token_ids == []


def test_a_longer_history_continues_the_known_one(store: PrefixStore) -> None:
    first = stored(store, list(range(40)))
    again = store.lease(list(range(60)), at_most=60)
    assert again is first
    assert columns(again) == list(range(40))


def test_the_branch_that_was_taken_becomes_part_of_the_prefix(store: PrefixStore) -> None:
    stored(store, list(range(40)), [50, 51, 52], [50, 61, 62, 63])
    entry = store.lease([*range(40), 50, 61, 62, 99, 98], at_most=45)
    assert columns(entry) == [*range(40), 50, 61, 62]


def test_a_history_that_leaves_the_known_one_early_gets_a_copy(store: PrefixStore) -> None:
    kept = stored(store, list(range(40)))
    other = store.lease([*range(30), 77, 78], at_most=32)
    fill(other, [*range(30), 77, 78])
    assert columns(kept) == list(range(40))
    assert columns(other) == [*range(30), 77, 78]


def test_a_held_entry_is_copied_not_shared(store: PrefixStore) -> None:
    stored(store, list(range(40)), [50], [60])
    first = store.lease([*range(40), 50, 1], at_most=42)
    second = store.lease([*range(40), 60, 2], at_most=42)
    assert first.slab is not second.slab
    assert columns(first) == [*range(40), 50]
    assert columns(second) == list(range(40))


def test_two_continuations_at_once_do_not_write_into_each_other(store: PrefixStore) -> None:
    stored(store, list(range(40)))
    one, other = ([*range(40), *new] for new in ([71, 72], [81, 82]))
    entries = [store.lease(token_ids, at_most=42) for token_ids in (one, other)]
    for entry, token_ids in zip(entries, (one, other), strict=True):
        fill(entry, token_ids)
    assert [columns(entry) for entry in entries] == [one, other]


def test_the_last_tokens_can_be_asked_for_again(store: PrefixStore) -> None:
    first = stored(store, list(range(40)))
    again = store.lease(list(range(40)), at_most=39)
    assert again is first
    assert again.token_ids == list(range(39))


def test_equal_hashes_are_no_proof(store: PrefixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qnet.kvstore.hash", lambda _: 1, raising=False)
    stored(store, list(range(40)))
    entry = store.lease(list(range(100, 140)), at_most=40)
    assert entry.token_ids == []


def test_the_least_recently_used_is_forgotten_first() -> None:
    store = PrefixStore(cache_bytes=2 * BYTES_PER_SLAB)
    for start in (100, 200):
        stored(store, list(range(start, start + 20)))
    stored(store, list(range(100, 120)))
    stored(store, list(range(300, 320)))
    known = [
        start
        for start in (100, 200, 300)
        if store.lease(list(range(start, start + 20)), at_most=20).token_ids
    ]
    assert known == [100, 300]
    assert store.nbytes == 2 * BYTES_PER_SLAB
    assert store.evictions == 1


def test_what_was_cleared_is_gone(store: PrefixStore) -> None:
    stored(store, list(range(40)))
    store.clear()
    assert (len(store), store.nbytes) == (0, 0)
    assert store.lease(list(range(40)), at_most=40).token_ids == []


def test_common_prefix_counts_equal_leading_tokens() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert common_prefix([1, 2], [1, 2, 3]) == 2
    assert common_prefix([], [1]) == 0
