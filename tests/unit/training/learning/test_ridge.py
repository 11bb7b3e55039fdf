from typing import Any

import numpy as np
import pytest
from scipy import sparse

from qguide.training.learning.ridge import Design, Floats, columns_of, designs, reweighted_ridge, ridge

_CAUSE = 7


def _design(rows: Floats) -> Design:
    x = sparse.csr_matrix(rows.astype(np.float32))
    columns = columns_of(x, np.arange(rows.shape[1], dtype=np.int32), bits=9)
    return Design(x @ columns.shares, columns)


def _case() -> tuple[Design, Floats]:
    """One column of 200 decides; the others are of the same size and occur at random."""
    chance = np.random.default_rng(0)
    rows = chance.integers(0, 2, (120, 200)).astype(float)
    outcome = rows[:, _CAUSE] + chance.normal(0, 0.3, 120)
    return _design(rows), outcome


def test_a_reweighted_fit_finds_the_one_column_that_decides() -> None:
    x, outcome = _case()
    (plain, mean), (found, same_mean) = (each(x, outcome, alpha=10.0) for each in (ridge, reweighted_ridge))
    plain, found = (x.columns.spread(weights).astype(float) for weights in (plain, found))
    others = np.arange(512) != _CAUSE

    assert mean == same_mean == pytest.approx(outcome.mean())
    assert np.argmax(np.abs(found)) == _CAUSE
    assert found[_CAUSE] > 1.5 * plain[_CAUSE]
    assert np.abs(found[others]).sum() < 0.6 * np.abs(plain[others]).sum()


def test_a_target_that_never_varies_has_no_weights() -> None:
    x, _ = _case()
    weights, mean = reweighted_ridge(x, np.full(120, 0.4), alpha=10.0)
    assert mean == pytest.approx(0.4)
    assert weights == pytest.approx(np.zeros(200), abs=1e-6)


def _plain_ridge(x: Floats, y: Floats, sizes: Floats) -> Floats:
    scaled = x * sizes
    solved = np.linalg.solve(scaled.T @ scaled + 10 * np.eye(x.shape[1]), scaled.T @ (y - y.mean()))
    return np.asarray(sizes * solved)


def test_many_examples_and_few_large_columns_are_solved_exactly_enough() -> None:
    """In sums of 32 bits such a fit is wrong by twice the size of the targets."""
    chance = np.random.default_rng(0)
    rows = np.abs(chance.normal(size=(4000, 100)))
    y = 0.1 * rows[:, 0] + chance.normal(0, 0.4, 4000)
    x = _design(rows)
    sizes = np.where(np.arange(100) < 33, 200.0, 0.5)

    weights, mean = ridge(x, y, alpha=10.0, sizes=sizes)

    expected = _plain_ridge(x.rows.toarray().astype(float), y, sizes)
    assert x.rows @ (weights - expected) == pytest.approx(np.zeros(4000), abs=0.01)
    assert mean == pytest.approx(y.mean())


def test_a_fit_to_very_many_examples_is_that_to_the_columns_that_weigh_most_and_to_the_others() -> None:
    chance = np.random.default_rng(0)
    rows = sparse.random(10_500, 450, 0.02, random_state=0, data_rvs=chance.standard_normal).toarray()
    y = rows[:, 0] - rows[:, 440] + chance.normal(0, 0.3, len(rows))
    x = _design(rows)
    sizes = np.exp(chance.normal(size=450))

    weights, _ = ridge(x, y, alpha=10.0, sizes=sizes)

    expected = _plain_ridge(x.rows.toarray().astype(float), y, sizes)
    assert x.rows @ (weights - expected) == pytest.approx(np.zeros(len(rows)), abs=0.01)


def test_columns_that_are_equal_but_for_the_sign_get_the_weights_of_a_fit_to_each() -> None:
    chance = np.random.default_rng(1)
    different = chance.integers(0, 2, (60, 40)).astype(float)
    x = np.concatenate([different, -different[:, :9], different[:, 3:20], np.zeros((60, 4))], axis=1)
    y = different[:, 5] + chance.normal(0, 0.3, 60)
    weights = _plain_ridge(x, y, np.ones(70))
    for _ in range(2):
        sizes = np.abs(weights) / np.abs(weights).mean() + 0.05
        weights = _plain_ridge(x, y, sizes / np.sqrt(np.mean(sizes**2)))

    design = _design(x)
    found, _ = reweighted_ridge(design, y, alpha=10.0)

    assert design.rows.shape == (60, 41)
    assert design.columns.spread(found)[:70] == pytest.approx(weights, abs=3e-3)


def test_other_examples_are_judged_in_the_same_columns() -> None:
    def vector(*features: tuple[int, float]) -> tuple[Any, Any]:
        places, values = zip(*features, strict=True)
        return np.array(places, np.int32), np.array(values, np.float32)

    fitted, judged = designs([vector((3, 1.0), (9, -1.0)), vector((5, 1.0))], [vector((3, 1.0), (7, 1.0))], bits=8)
    weights = np.arange(1.0, 1 + len(fitted.columns.numbers))
    spread = fitted.columns.spread(weights)

    assert spread[3] == -spread[9] != 0
    assert fitted.rows @ weights == pytest.approx([spread[3] - spread[9], spread[5]])
    assert judged.rows @ weights == pytest.approx([spread[3] + spread[7]])


def test_halves_of_the_places_are_designs_of_their_own() -> None:
    same = (np.array([3, 131, 7], np.int32), np.array([1.0, 1.0, 2.0], np.float32))
    design, _ = designs([same, (np.array([5], np.int32), np.ones(1, np.float32))], bits=8)

    (words, of_words), (facts, of_facts) = design.by_halves()

    assert design.columns.halves[facts].tolist() == [1], "equal columns of two halves are two"
    assert of_words.rows.shape == (2, words.sum())
    assert of_facts.rows.toarray().tolist() == [[1.0], [0.0]]
    assert of_facts.columns.spread(np.array([2.0])).nonzero()[0].tolist() == [131]
