"""Ridge regression on sparse hashed features, solved by conjugate gradients in the dual."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg

from qguide.qnet.features.hashing import Sparse

Floats = NDArray[np.float64]
_TOLERANCE = 1e-3
_MOST_ITERATIONS = 100


@dataclass(frozen=True, slots=True)
class Design:
    """Features of examples, one a row, in the columns that occur.

    Attributes:
        rows: (n, k) sparse.
        used: (k,) places of the columns among the 2^bits.
        bits: of the hashes.
    """

    rows: Any
    used: NDArray[np.int32]
    bits: int

    def where(self, chosen: NDArray[np.bool_]) -> "Design":
        """Some of the examples, in the same columns."""
        return Design(self.rows[chosen], self.used, self.bits)

    def spread(self, weights: Floats) -> NDArray[np.float32]:
        """(2^bits,) the weights of the columns at their places, 0 elsewhere."""
        whole = np.zeros(1 << self.bits, np.float32)
        whole[self.used] = weights
        return whole


def design(vectors: Sequence[Sparse], *, bits: int) -> Design:
    """The design of these vectors."""
    starts = np.concatenate([[0], np.cumsum([len(indices) for indices, _ in vectors])])
    indices = np.concatenate([indices for indices, _ in vectors])
    values = np.concatenate([values for _, values in vectors])
    used, columns = np.unique(indices, return_inverse=True)
    rows = sparse.csr_matrix((values, columns, starts), shape=(len(vectors), len(used)))
    rows.sum_duplicates()
    return Design(rows, used, bits)


def ridge(x: Design, y: Floats, *, alpha: float) -> tuple[Floats, float]:
    """Weights w and intercept b that minimise |x w + b - y|^2 + alpha |w|^2; b is the mean of y.

    In the dual w = x^T c with (x x^T + alpha I) c = y - b, whose size is the number of examples
    and not that of features (Saunders et al., 1998).
    """
    mean = float(y.mean())
    transposed = x.rows.T.tocsr()
    system = LinearOperator(
        (len(y), len(y)), lambda c: x.rows @ (transposed @ c) + alpha * c, dtype=np.float64
    )
    solved, _ = cg(system, y - mean, rtol=_TOLERANCE, maxiter=_MOST_ITERATIONS)
    weights: Floats = transposed @ solved
    return weights, mean
