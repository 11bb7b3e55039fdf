"""Trainings one after the other in one job, each in several processes."""

import gc

import pytest
import torch
from torch import distributed

from qguide.training.optimization.launch import in_processes
from qguide.training.optimization.options import Optimization


def leave_the_group() -> None:
    """Hold the group in a cycle, which goes with the garbage."""
    cycle: list[object] = [distributed.group.WORLD]
    cycle.append(cycle)
    distributed.all_reduce(torch.zeros(1))


def collect() -> int:
    gc.collect()
    ranks = torch.ones(1)
    distributed.all_reduce(ranks)
    return int(ranks)


@pytest.mark.alone
def test_a_forked_process_does_not_end_the_group_of_an_earlier_training() -> None:
    two = Optimization(processes=2, threads=1, device="cpu")
    torch.set_num_threads(1)
    gc.disable()
    in_processes(two, leave_the_group)
    assert in_processes(two, collect) == 2
