"""Draws of recorded groups that end once the choice is decided change no choice."""

from types import SimpleNamespace
from typing import cast

import numpy as np

from qguide.training.choosing.choosers import served_posterior, votes, written_until_decided
from qguide.training.choosing.table import Table


def table(actions: list[int], written: list[int]) -> Table:
    made = SimpleNamespace(actions=np.array(actions), written=np.array(written, np.float32))
    return cast("Table", made)


def test_a_majority_of_three_saves_what_the_last_two_would_write() -> None:
    known = table([0, 0, 0, 1, 2], [10, 10, 20, 30, 30])
    groups = np.array([[0, 1, 2, 3, 4], [0, 1, 3, 2, 4]])
    np.testing.assert_allclose(written_until_decided(known, groups), [0.4, 0.7])


def test_what_is_left_out_would_not_have_changed_the_posteriors_choice() -> None:
    rng = np.random.default_rng(0)
    known = table(rng.integers(0, 3, 200).tolist(), [1] * 200)
    groups = rng.integers(0, 200, (300, 5))
    q = rng.random((300, 5)).astype(np.float32)
    share = written_until_decided(known, groups, q, 1.0)
    assert 0.2 <= share.min() < share.max() == 1.0
    whole = served_posterior(known, groups, q, 1.0).argmax(axis=1)
    for row in np.flatnonzero(share < 1):
        n = round(5 * share[row])
        part = served_posterior(known, groups[row : row + 1, :n], q[row : row + 1, :n], 1.0)
        chosen = known.actions[groups[row, part.argmax()]]
        assert chosen == known.actions[groups[row, whole[row]]]
    assert votes(known.actions[groups]).shape == (300, 5)
