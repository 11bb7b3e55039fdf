"""The loss columns of an episode are the papers' loss over its (state, action) prefixes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qguide.training.optimization.options import LossOn
from qguide.training.optimization.packed_trees import regression_columns

labels = st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=5)


@given(labels, st.sampled_from(["all", "action", "last"]))
def test_one_pass_has_the_gradient_of_equation_11(q_values: list[float | None], loss_on: LossOn) -> None:
    spans = [(4 * i + 2, 4 * i + 4) for i in range(len(q_values))]
    length = 4 * len(q_values)
    q_T = torch.rand(length, dtype=torch.float64, requires_grad=True)
    columns = regression_columns(length, spans, q_values, loss_on=loss_on)
    weight_T = torch.tensor(columns["weight"], dtype=torch.float64)
    target_T = torch.tensor(columns["target"], dtype=torch.float64)
    (packed,) = torch.autograd.grad((weight_T * (q_T - target_T) ** 2).sum(), q_T)
    loss = torch.zeros((), dtype=torch.float64) + 0.0 * q_T.sum()
    for (start, end), q in zip(spans, q_values, strict=True):
        first = {"all": 0, "action": start, "last": end - 1}[loss_on]
        if q is not None:
            loss = loss + ((q_T[first:end] - q) ** 2).mean()
    (literal,) = torch.autograd.grad(loss, q_T)
    torch.testing.assert_close(packed, literal)


def test_an_action_that_counts_elsewhere_weighs_nothing() -> None:
    columns = regression_columns(6, [(1, 2), (4, 6)], [None, 0.5], loss_on="action")
    assert columns["weight"] == [0, 0, 0, 0, 0.5, 0.5]
    assert columns["target"][4:] == pytest.approx([0.5, 0.5])
