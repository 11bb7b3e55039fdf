"""Ridge regression on sparse hashed features, solved by conjugate gradients in the dual.

Of thousands of pairs of words few say something. Plain ridge spreads a weight over all that occur
together; reweighted ridge penalises those less that came out large (Grandvalet, 1998; Zou, 2006).
"""

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
_REWEIGHTED = 2
"""Times that columns are weighed anew."""
_FLOOR = 0.05
"""Of a column's size, in mean weights: what came out as 0 may come back."""


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


def ridge(
    x: Design, y: Floats, *, alpha: float, sizes: Floats | None = None
) -> tuple[Floats, float]:
    """Weights w and intercept b that minimise |x w + b - y|^2 + alpha sum (w_j / s_j)^2.

    b is the mean of y. In the dual w = S^2 x^T c with (x S^2 x^T + alpha I) c = y - b, whose size
    is the number of examples and not that of features (Saunders et al., 1998).

    Args:
        x: (n, k) the examples.
        y: (n,) their targets.
        alpha: penalty.
        sizes: (k,) s, by which columns are expected to be large; None: all are 1.
    """
    mean = float(y.mean())
    rows, transposed = x.rows, x.rows.T
    squares = np.float32(1) if sizes is None else np.square(sizes).astype(np.float32)
    system = LinearOperator(
        (len(y), len(y)),
        lambda c: rows @ (squares * (transposed @ c)) + np.float32(alpha) * c,
        dtype=np.float32,
    )
    target = (y - mean).astype(np.float32)
    solved, _ = cg(system, target, rtol=_TOLERANCE, maxiter=_MOST_ITERATIONS)
    weights: Floats = (squares * (transposed @ solved)).astype(np.float64)
    return weights, mean


def reweighted_ridge(x: Design, y: Floats, *, alpha: float) -> tuple[Floats, float]:
    """Ridge regression whose penalty of a column falls with its weight in the fit before.

    The sizes of the columns are those of their weights, with a root mean square of 1.
    """
    weights, mean = ridge(x, y, alpha=alpha)
    for _ in range(_REWEIGHTED):
        sizes = np.abs(weights)
        sizes = sizes / max(float(sizes.mean()), np.finfo(float).tiny) + _FLOOR
        sizes /= np.sqrt(np.mean(sizes**2))
        weights, mean = ridge(x, y, alpha=alpha, sizes=sizes)
    return weights, mean
