import numpy as np
import pytest
from scipy import sparse

from qguide.training.learning.ridge import Design, Floats, reweighted_ridge, ridge

_CAUSE = 7


def _case() -> tuple[Design, Floats]:
    """One column of 200 decides; the others are of the same size and occur at random."""
    chance = np.random.default_rng(0)
    rows = chance.integers(0, 2, (120, 200)).astype(np.float32)
    outcome = rows[:, _CAUSE] + chance.normal(0, 0.3, 120)
    return Design(sparse.csr_matrix(rows), np.arange(200, dtype=np.int32), 8), outcome


def test_a_reweighted_fit_finds_the_one_column_that_decides() -> None:
    x, outcome = _case()
    (plain, mean), (found, same_mean) = (
        each(x, outcome, alpha=10.0) for each in (ridge, reweighted_ridge)
    )
    others = np.arange(200) != _CAUSE

    assert mean == same_mean == pytest.approx(outcome.mean())
    assert np.argmax(np.abs(found)) == _CAUSE
    assert found[_CAUSE] > 1.5 * plain[_CAUSE]
    assert np.abs(found[others]).sum() < 0.6 * np.abs(plain[others]).sum()


def test_a_target_that_never_varies_has_no_weights() -> None:
    x, _ = _case()
    weights, mean = reweighted_ridge(x, np.full(120, 0.4), alpha=10.0)
    assert mean == pytest.approx(0.4)
    assert weights == pytest.approx(np.zeros(200), abs=1e-6)
