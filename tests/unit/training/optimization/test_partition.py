"""Work is divided among processes by size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qguide.training.optimization.launch import Assignment, assign, partition

sizes = st.lists(st.integers(1, 100), max_size=30)


def loads(dealt: list[list[int]], sizes: list[int]) -> list[int]:
    return [sum(sizes[i] for i in hand) for hand in dealt]


def test_a_long_one_is_set_against_many_short_ones() -> None:
    assert partition([10, 60, 10, 10, 30], parts=2) == [[1], [0, 2, 3, 4]]


def test_equal_sizes_go_round() -> None:
    assert partition([5, 5, 5, 5], parts=2) == [[0, 2], [1, 3]]


@given(sizes, st.integers(1, 4))
def test_everything_is_dealt_once_and_no_hand_is_over_full(sizes: list[int], hands: int) -> None:
    dealt = partition(sizes, parts=hands)
    assert sorted(i for hand in dealt for i in hand) == list(range(len(sizes)))
    # Graham: whoever is fullest took its last item when it had least.
    assert max(loads(dealt, sizes)) <= sum(sizes) / hands + max(sizes, default=0)


def test_one_process_keeps_everything_as_it_came() -> None:
    assert assign([3, 1, 2], size=int, rank=0, ranks=1) == Assignment([3, 1, 2], [])


@pytest.mark.parametrize("even", [False, True])
@given(sizes=st.lists(st.integers(1, 100), min_size=1, max_size=12), ranks=st.integers(1, 4))
def test_every_item_counts_once_and_passes_are_even_where_they_have_to_be(
    sizes: list[int], ranks: int, even: bool
) -> None:
    shares = [assign(sizes, size=int, rank=r, ranks=ranks, even=even) for r in range(ranks)]
    assert sorted(item for part in shares for item in part.items) == sorted(sizes)
    passes = [len(part.items) + len(part.fillers) for part in shares]
    assert not even or len(set(passes)) == 1
    assert {item for part in shares for item in part.fillers} <= {min(sizes)}
