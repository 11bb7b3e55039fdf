"""A manifest keeps what was fitted, and leaves out what was not."""

import pytest
from pydantic import ValidationError

from qguide.qnet.models.manifest import Manifest, PriorSection, TauOutcome


def test_a_fitted_prior_comes_back_with_its_curve() -> None:
    curve = (TauOutcome(tau=0, outcome=0.4, standard_error=0.02),)
    prior = PriorSection(tau=0.1, by="likelihood", curve=curve, decisions=40, tasks=12)
    written = Manifest(kind="qnet", name="q", read_at="last_token", prior=prior).model_dump_json()
    assert Manifest.model_validate_json(written).prior == prior


def test_a_manifest_without_a_prior_says_nothing_of_one() -> None:
    assert "prior" not in Manifest(kind="policy", name="p").model_dump()


def test_tau_is_a_finite_temperature() -> None:
    for tau in (-0.1, float("inf"), float("nan")):
        with pytest.raises(ValidationError):
            PriorSection(tau=tau)
