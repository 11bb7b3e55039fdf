"""Muon: updates are orthogonal matrices, and it minimises."""

import pytest
import torch

from qguide.training.optimization.launch import in_processes
from qguide.training.optimization.optimizers import Muon, orthogonalise, shared_map
from qguide.training.optimization.options import Optimization


@pytest.mark.parametrize("shape", [(8, 8), (4, 16), (16, 4)])
def test_orthogonalised_singular_values_are_about_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    singular = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
    assert float(singular.min()) > 0.5
    assert float(singular.max()) < 1.3


def test_it_minimises_a_quadratic() -> None:
    torch.manual_seed(0)
    target = torch.randn(6, 6)
    weight = torch.zeros(6, 6, requires_grad=True)
    optimizer = Muon([weight], lr=0.05)
    losses = []
    for _ in range(120):
        optimizer.zero_grad()
        loss = ((weight - target) ** 2).sum()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert min(losses) < losses[0] / 50


@pytest.mark.alone
def test_two_processes_share_a_map_and_both_have_all_of_it() -> None:
    tensors = [torch.full((2, 3), float(i)) for i in range(5)]
    computed: list[float] = []

    def double(tensor: torch.Tensor) -> torch.Tensor:
        computed.append(float(tensor[0, 0]))
        return 2 * tensor

    two = Optimization(processes=2, threads=1, device="cpu")
    doubled = in_processes(two, lambda: shared_map(double, tensors))
    assert 0 < len(computed) < len(tensors)
    torch.testing.assert_close(doubled, [2 * tensor for tensor in tensors])
