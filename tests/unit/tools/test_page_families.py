"""P-values adjusted over all comparisons of a page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.page_families import holm_p_values


def test_holm_gives_the_textbook_values_in_the_order_given() -> None:
    # 0.01 * 4, 0.02 * 3, max(0.03 * 2, 0.06), max(0.04, 0.06).
    assert holm_p_values([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_keeps_the_order_and_never_lowers_a_p_value(p_values: list[float]) -> None:
    adjusted = holm_p_values(p_values)
    assert all(p <= after <= 1 for p, after in zip(p_values, adjusted, strict=True))
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    assert [adjusted[i] for i in order] == sorted(adjusted)
