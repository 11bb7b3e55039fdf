"""Trainings one after the other in one job, each in several processes."""

import subprocess
import sys

TWO_TRAININGS = """
import gc
import torch
from torch import distributed
from qguide.training.optimization.launch import in_processes
from qguide.training.optimization.options import Optimization

def leave_the_group():
    cycle = [distributed.group.WORLD]
    cycle.append(cycle)
    distributed.all_reduce(torch.zeros(1))

def collect():
    gc.collect()
    ranks = torch.ones(1)
    distributed.all_reduce(ranks)
    return int(ranks)

two = Optimization(processes=2, threads=1, device="cpu")
gc.disable()
in_processes(two, leave_the_group)
print(in_processes(two, collect))
"""


def test_a_forked_process_does_not_end_the_group_of_an_earlier_training() -> None:
    command = [sys.executable, "-c", TWO_TRAININGS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "2\n"
