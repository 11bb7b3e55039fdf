"""Ridge regression on sparse hashed features, solved by conjugate gradients in the dual.

Of thousands of pairs of words few say something. Plain ridge spreads a weight over all that occur
together; reweighted ridge penalises those less that came out large (Grandvalet, 1998; Zou, 2006).

Most of those pairs occur in the same few examples as others do. Such columns are equal but for the
sign of their hash and get equal weights, so they are fitted as one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.linalg import norm
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse.linalg import LinearOperator, cg

from qguide.qnet.features.hashing import Sparse

Floats = NDArray[np.float64]
_TOLERANCE = 1e-3
_MOST_ITERATIONS = 100
_MOST_RESIDUAL = 0.2
"""Of what is solved; with more, predictions may be far off."""
_MANY = 10_000
"""Examples with which the preconditioner pays from the first iteration on."""
_PRECONDITIONED = 400
"""Columns that a preconditioner has in full."""
_REWEIGHTED = 2
"""Times that columns are weighed anew."""
_FLOOR = 0.05
"""Of a column's size, in mean weights: what came out as 0 may come back."""
_SEED: Final = 0


@dataclass(frozen=True, slots=True)
class HashedColumns:
    """Columns that occur among the 2^bits, those that are equal but for the sign as one.

    Attributes:
        used: (k,) places of all that occur.
        numbers: (m,) columns that each stands for.
        shares: (k, m) sparse, the sign of each in the one that stands for it, by 1 / sqrt(number).
            So the squared weights of all have the same sum.
        halves: (m,) half of the places that each is of.
        bits: of the hashes.
    """

    used: NDArray[np.int32]
    numbers: Floats
    shares: Any
    halves: NDArray[np.int32]
    bits: int

    def where(self, chosen: NDArray[np.bool_]) -> "HashedColumns":
        """Some of the columns."""
        return HashedColumns(self.used, self.numbers[chosen], self.shares[:, chosen], self.halves[chosen], self.bits)

    def spread(self, weights: Floats) -> NDArray[np.float32]:
        """(2^bits,) the weights (m,) at the places of all columns, 0 elsewhere."""
        whole = np.zeros(1 << self.bits, np.float32)
        whole[self.used] = self.shares @ weights
        return whole


@dataclass(frozen=True, slots=True)
class Design:
    """Features of examples, one a row.

    Attributes:
        rows: (n, m) sparse.
    """

    rows: Any
    columns: HashedColumns

    def where(self, chosen: NDArray[np.bool_]) -> "Design":
        """Some of the examples, in the same columns."""
        return Design(self.rows[chosen], self.columns)

    def by_halves(self) -> list[tuple[NDArray[np.bool_], "Design"]]:
        """The columns of each half of the places, where it has any, and the design of these alone."""
        masks = [self.columns.halves == half for half in np.unique(self.columns.halves)]
        return [(mask, Design(self.rows[:, mask], self.columns.where(mask))) for mask in masks]


def designs(fitted: Sequence[Sparse], judged: Sequence[Sparse] = (), *, bits: int) -> tuple[Design, Design]:
    """The design of the vectors to fit, and that of others in the same columns."""
    vectors = [*fitted, *judged]
    starts = np.concatenate([[0], np.cumsum([len(indices) for indices, _ in vectors])])
    indices = np.concatenate([indices for indices, _ in vectors])
    values = np.concatenate([values for _, values in vectors])
    used, places = np.unique(indices, return_inverse=True)
    rows = sparse.csr_matrix((values, places, starts), shape=(len(vectors), len(used)))
    rows.sum_duplicates()
    columns = columns_of(rows[: len(fitted)], used, bits=bits)
    merged = rows @ columns.shares
    return Design(merged[: len(fitted)], columns), Design(merged[len(fitted) :], columns)


def columns_of(rows: Any, used: NDArray[np.int32], *, bits: int) -> HashedColumns:
    """The columns of examples (n, k).

    They are told apart by a random projection, of which chance makes two equal once in 2^50. Those
    of different halves of the places stay apart, as if those of the second were e times as large.
    """
    halves = used >> (bits - 1)
    projected = (rows.T @ np.random.default_rng(_SEED).standard_normal(rows.shape[0])) * np.exp(halves)
    _, of, numbers = np.unique(np.abs(projected), return_inverse=True, return_counts=True)
    signs = np.where(np.signbit(projected), -1, 1) / np.sqrt(numbers[of])
    starts = np.arange(len(of) + 1)
    shares = sparse.csr_matrix((signs.astype(np.float32), of, starts), (len(of), len(numbers)))
    of_columns = np.zeros(len(numbers), np.int32)
    of_columns[of] = halves
    return HashedColumns(used, numbers.astype(np.float64), shares, of_columns, bits)


def ridge(x: Design, y: Floats, *, alpha: float, sizes: Floats | None = None) -> tuple[Floats, float]:
    """Weights w and intercept b that minimise |x w + b - y|^2 + alpha sum (w_j / s_j)^2.

    b is the mean of y. In the dual w = S^2 x^T c with (x S^2 x^T + alpha I) c = y - b, whose size
    is the number of examples and not that of features (Saunders et al., 1998).

    Args:
        x: (n, m) the examples.
        y: (n,) their targets.
        alpha: penalty.
        sizes: (m,) s, by which columns are expected to be large; None: all are 1.
    """
    mean = float(y.mean())
    squares = np.float32(1) if sizes is None else np.square(sizes).astype(np.float32)
    target = (y - mean).astype(np.float32)
    rows, residual = x.rows, np.inf
    if len(target) <= _MANY:
        solved, residual = _solved(rows, squares, target, alpha)
    if residual > _MOST_RESIDUAL:  # sums of 32 bits do not converge where few columns are large and examples many
        # Places are shared: `astype` would copy them, too.
        rows = sparse.csr_matrix((rows.data.astype(np.float64), rows.indices, rows.indptr), rows.shape)
        about = _preconditioner(rows, squares, alpha)
        solved, _ = _solved(rows, squares, target.astype(np.float64), alpha, about=about)
    weights: Floats = (squares * (rows.T @ solved)).astype(np.float64)
    return weights, mean


def _solved(
    rows: Any, squares: Any, target: Any, alpha: float, *, about: LinearOperator | None = None
) -> tuple[Any, float]:
    """c, in numbers of the target's kind, and the length of its residual beside the target's.

    Args:
        about: an estimate of the inverse.
    """
    penalty, transposed = target.dtype.type(alpha), rows.T
    system = LinearOperator(
        (len(target), len(target)), lambda c: rows @ (squares * (transposed @ c)) + penalty * c, dtype=target.dtype
    )
    most = _MOST_ITERATIONS if about is None else 3 * _MOST_ITERATIONS
    solved, _ = cg(system, target, rtol=_TOLERANCE, maxiter=most, M=about)
    # The residual that it goes by itself is summed up, and in 32 bits may be far from the true one.
    return solved, float(norm(system @ solved - target) / max(norm(target), np.finfo(np.float32).tiny))


def _preconditioner(rows: Any, squares: Any, alpha: float) -> LinearOperator:
    """Inverse of z z^T + r I for the columns z of x S that weigh most, with r for all others.

    By Woodbury's identity it is (I - z (z^T z + r I)^-1 z^T) / r.
    """
    examples, columns = rows.shape
    weighed = squares * np.bincount(rows.indices, np.square(rows.data), minlength=columns)
    most = min(_PRECONDITIONED, columns)
    largest = np.argpartition(weighed, -most)[-most:]
    z = rows[:, largest].toarray()
    z *= np.sqrt(np.broadcast_to(squares, columns)[largest])
    rest = alpha + (weighed.sum() - weighed[largest].sum()) / examples
    inner = cho_factor(z.T @ z + rest * np.eye(most))
    return LinearOperator((examples, examples), lambda c: (c - z @ cho_solve(inner, z.T @ c)) / rest, dtype=rows.dtype)


def reweighted_ridge(x: Design, y: Floats, *, alpha: float) -> tuple[Floats, float]:
    """Ridge regression whose penalty of a column falls with its weight in the fit before.

    The sizes of the columns are those of their weights, with a root mean square of 1.
    """
    numbers = x.columns.numbers
    weights, mean = ridge(x, y, alpha=alpha)
    for _ in range(_REWEIGHTED):
        sizes = np.abs(weights) / np.sqrt(numbers)
        usual = float(np.average(sizes, weights=numbers))
        sizes = sizes / max(usual, np.finfo(float).tiny) + _FLOOR
        sizes /= np.sqrt(np.average(sizes**2, weights=numbers))
        weights, mean = ridge(x, y, alpha=alpha, sizes=sizes)
    return weights, mean
