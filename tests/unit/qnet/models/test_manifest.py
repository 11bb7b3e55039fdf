"""A manifest keeps what was fitted, and leaves out what was not."""

import pytest
from pydantic import ValidationError

from qguide.qnet.models.manifest import Manifest, OutcomeAtTau, PriorSection, figure_text


def test_a_fitted_prior_comes_back_with_its_curve() -> None:
    curve = (OutcomeAtTau(tau=0, outcome=0.4, standard_error=0.02),)
    prior = PriorSection(tau=0.1, by="likelihood", curve=curve, decisions=40, tasks=12)
    written = Manifest(kind="qnet", name="q", read_at="last_token", prior=prior).model_dump_json()
    assert Manifest.model_validate_json(written).prior == prior


def test_a_manifest_without_a_prior_says_nothing_of_one() -> None:
    assert "prior" not in Manifest(kind="policy", name="p").model_dump()


def test_tau_is_a_finite_temperature() -> None:
    for tau in (-0.1, float("inf"), float("nan")):
        with pytest.raises(ValidationError):
            PriorSection(tau=tau)


def test_a_share_of_pairs_in_order_is_shown_with_chance_and_the_pairs_it_is_of() -> None:
    figures = {"sibling_accuracy": 0.61234, "sibling_pairs": 1200, "pairs_in_order": 0.8, "decisions": 1455.0}
    assert figure_text("sibling_accuracy", figures) == "0.6123 (chance 0.5; 1,200 pairs)"
    assert figure_text("pairs_in_order", figures) == "0.8 (chance 0.5; pairs of 1,455 decisions)"
    assert figure_text("decisions", figures) == "1,455"
