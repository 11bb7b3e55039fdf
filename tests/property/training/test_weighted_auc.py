"""The AUC of the guidance report equals its definition over all pairs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qguide.training.guidance_report.calibration import weighted_auc

OBSERVATIONS = st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 3)), min_size=1, max_size=12)


@given(OBSERVATIONS)
def test_it_is_the_share_of_pairs_in_order(observations: list[tuple[int, bool, int]]) -> None:
    repeated = [(value, good) for value, good, weight in observations for _ in range(weight)]
    pairs = [
        (value > other) + (value == other) / 2
        for value, good in repeated
        for other, bad in repeated
        if good and not bad
    ]
    columns = np.array(observations, dtype=np.float64).T
    found = weighted_auc(columns[0], columns[1], columns[2])
    assert found == (pytest.approx(sum(pairs) / len(pairs)) if pairs else None)
