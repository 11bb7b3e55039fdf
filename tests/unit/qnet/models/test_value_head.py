"""Q of a value head is a float32 number, also in training with mixed precision."""

import pytest
import torch

from qguide.qnet.models.options import HeadKind
from qguide.qnet.models.qnet import ValueHead


@pytest.mark.parametrize(("kind", "bins"), [("mlp", 0), ("linear", 0), ("mlp", 9)])
def test_autocast_does_not_round_q(kind: HeadKind, bins: int) -> None:
    torch.manual_seed(0)
    head = ValueHead(32, 16, kind=kind, bins=bins)
    hidden_ND = 1.0 + 1e-3 * torch.randn(512, 32)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        outputs_NK = head.outputs(hidden_ND)
        q_N = head.q_of(outputs_NK)
    assert outputs_NK.dtype == q_N.dtype == torch.float32
    assert not torch.equal(q_N, q_N.bfloat16().float())
