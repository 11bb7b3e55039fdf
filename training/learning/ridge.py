"""Ridge regression on sparse hashed features, solved by conjugate gradients in the dual."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg

from qnet.features.hashing import Sparse

Floats = NDArray[np.float64]
_TOLERANCE = 1e-4
_MOST_ITERATIONS = 200


def design(vectors: Sequence[Sparse], *, bits: int) -> Any:
    """(n, 2^bits) matrix with one vector a row."""
    starts = np.concatenate([[0], np.cumsum([len(indices) for indices, _ in vectors])])
    indices = np.concatenate([indices for indices, _ in vectors])
    values = np.concatenate([values for _, values in vectors])
    return sparse.csr_matrix((values, indices, starts), shape=(len(vectors), 1 << bits))


def ridge(x: Any, y: Floats, *, alpha: float) -> tuple[NDArray[np.float32], float]:
    """Weights w and intercept b that minimise |x w + b - y|^2 + alpha |w|^2; b is the mean of y.

    In the dual w = x^T c with (x x^T + alpha I) c = y - b, whose size is the number of examples
    and not that of features (Saunders et al., 1998).
    """
    mean = float(y.mean())
    used, columns = np.unique(x.indices, return_inverse=True)
    small = sparse.csr_matrix((x.data, columns, x.indptr), shape=(x.shape[0], len(used)))
    transposed = small.T.tocsr()
    size = (len(y), len(y))
    system = LinearOperator(size, lambda c: small @ (transposed @ c) + alpha * c, dtype=np.float64)
    solved, _ = cg(system, y - mean, rtol=_TOLERANCE, maxiter=_MOST_ITERATIONS)
    weights = np.zeros(x.shape[1], np.float32)
    weights[used] = transposed @ solved
    return weights, mean
