"""Muon: updates are orthogonal matrices, and it minimises."""

import pytest
import torch

from training.optimization.muon import Muon, orthogonalise


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
