"""Topics of texts: equal in equal runs, and those of scipy's `svds`."""

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import svds

from qguide.training.choosing.table import _principal


def some_texts(count: int, words: int, *, different: int) -> sparse.csr_matrix:
    """Texts of which so many are different."""
    rng = np.random.default_rng(0)
    rows = rng.random((different, words), np.float32) * (rng.random((different, words)) < 0.2)
    return sparse.csr_matrix(rows[np.arange(count) % different].astype(np.float32))


@pytest.mark.parametrize("shape", [(60, 40), (40, 60), (50, 50)])
def test_topics_of_few_different_texts_are_the_same_again(shape: tuple[int, int]) -> None:
    """ARPACK finds no further direction here, and begins anew at random."""
    x = some_texts(*shape, different=8)
    first, again = _principal(x, 11), _principal(x, 11)
    assert np.array_equal(first, again)
    assert first @ first.T == pytest.approx((x @ x.T).toarray(), abs=1e-4)


@pytest.mark.parametrize("shape", [(60, 40), (40, 60), (50, 50)])
def test_topics_of_many_are_those_of_svds(shape: tuple[int, int]) -> None:
    x = some_texts(*shape, different=shape[0])
    left, scale, _ = svds(x, k=11, v0=np.ones(min(shape), np.float32))
    assert np.array_equal(_principal(x, 11), left * scale)
