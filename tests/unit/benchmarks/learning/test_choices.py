"""Licences of a choice on fewer tasks: a good Q model keeps its own, and one of random values has none."""

from random import Random

from benchmarks.learning.choices import granted_shares
from qguide.training.algorithms.choice_quality import ScoredChoice
from qguide.training.licence.assessment import ScoredQModel


def test_a_clear_gain_is_licensed_on_few_tasks_and_random_values_are_not() -> None:
    choices = [
        ScoredChoice((1.0, 0.0), (1, 2), (True, True), (1, 1), values=(1.0, 0.0), task=f"t{number}")
        for number in range(30)
    ]
    good = ScoredQModel(choices, fits_prior=False)
    tried = {"good": good, "again": good}
    assert granted_shares(tried, tasks=20, repetitions=3) == [1.0, 1.0, 1.0]
    assert granted_shares(tried, tasks=12, repetitions=3) == [1.0, 1.0, 0.0]  # six judge where the others choose
    alone, wider, half = granted_shares({str(n): good for n in range(6)}, tasks=20, repetitions=5, values=Random(0))
    assert wider <= alone < 1
    assert half < 1
