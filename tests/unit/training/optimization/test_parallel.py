"""Work is divided among processes by size."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from training.optimization.parallel import assign, data_parallel, partition, shared_map

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
    assert assign([3, 1, 2], size=lambda item: item) == [3, 1, 2]


def test_two_processes_share_a_map_and_both_have_all_of_it() -> None:
    tensors = [torch.full((2, 3), float(i)) for i in range(5)]
    worked_out: list[float] = []

    def double(tensor: torch.Tensor) -> torch.Tensor:
        worked_out.append(float(tensor[0, 0]))
        return 2 * tensor

    def work() -> None:
        shared_map(double, tensors)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with data_parallel(2, work):
            doubled = shared_map(double, tensors)
    finally:
        torch.set_num_threads(threads)
    assert 0 < len(worked_out) < len(tensors)
    torch.testing.assert_close(doubled, [2 * tensor for tensor in tensors])
