"""The LRU cache: it stays within its size and evicts the least recently used entry."""

from hypothesis import given
from hypothesis import strategies as st

from qguide.qnet.lru_cache import LRUCache


def test_the_least_recently_used_goes_first() -> None:
    recent = LRUCache[str, int](size=3)
    for name in "abc":
        recent.put(name, ord(name), size=1)
    assert recent.get("a") == ord("a")
    recent.put("d", ord("d"), size=1)
    assert [recent.get(name) for name in "abcd"] == [ord("a"), None, ord("c"), ord("d")]


def test_one_larger_than_everything_may_be_is_not_kept() -> None:
    recent = LRUCache[str, int](size=3)
    recent.put("short", 2, size=3)
    recent.put("long", 1, size=4)
    assert recent.get("long") is None
    assert recent.get("short") == 2
    assert len(recent) == 1


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4))))
def test_the_size_is_kept_whatever_is_put(puts: list[tuple[int, int]]) -> None:
    recent = LRUCache[int, int](size=8)
    sizes: dict[int, int] = {}
    for key, size in puts:
        recent.put(key, size, size=size)
        sizes[key] = size
        assert recent.get(key) == size
        assert sum(sizes[k] for k in sizes if recent.get(k) is not None) <= 8
