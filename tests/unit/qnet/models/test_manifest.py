"""A manifest keeps what was fitted, and leaves out what was not."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.manifest import Manifest, OutcomeAtTau, PriorSection, figure_text, read_manifest


def test_a_fitted_prior_comes_back_with_its_curve() -> None:
    curve = (OutcomeAtTau(tau=0, outcome=0.4, standard_error=0.02),)
    prior = PriorSection(tau=0.1, by="likelihood", curve=curve, decisions=40, tasks=12)
    written = Manifest(kind="qnet", name="q", read_at="last_token", prior=prior).model_dump_json()
    assert Manifest.model_validate_json(written).prior == prior


def test_a_manifest_without_a_prior_says_nothing_of_one() -> None:
    assert "prior" not in Manifest(kind="policy", name="p").model_dump()


def test_a_folder_that_is_not_there_is_told_with_what_is(tmp_path: Path) -> None:
    for name in ("qnet", "learned", ".hidden"):
        (tmp_path / name).mkdir()
    with pytest.raises(CheckpointError, match=rf"qnat/checkpoint .*; {tmp_path} .* learned, qnet; "):
        read_manifest(tmp_path / "qnat" / "checkpoint")
    with pytest.raises(CheckpointError, match=rf"/a .*; {tmp_path / 'qnet'} .*; "):
        read_manifest(tmp_path / "qnet" / "a")
    for number in range(10):
        (tmp_path / "qnet" / f"{number}").mkdir()
    with pytest.raises(CheckpointError, match=r"holds 0, 1, 2, 3, 4, 5, 6, 7 and 2 more; "):
        read_manifest(tmp_path / "qnet" / "a")
    with pytest.raises(CheckpointError, match=r"qnet .* config\.json; "):
        read_manifest(tmp_path / "qnet")


def test_tau_is_a_finite_temperature() -> None:
    for tau in (-0.1, float("inf"), float("nan")):
        with pytest.raises(ValidationError):
            PriorSection(tau=tau)


def test_a_share_of_pairs_in_order_is_shown_with_chance_and_the_pairs_it_is_of() -> None:
    figures = {"sibling_accuracy": 0.61234, "sibling_pairs": 1200, "pairs_in_order": 0.8, "decisions": 1455.0}
    assert figure_text("sibling_accuracy", figures) == "0.6123 (chance 0.5; 1,200 pairs)"
    assert figure_text("pairs_in_order", figures) == "0.8 (chance 0.5; pairs of 1,455 decisions)"
    assert figure_text("decisions", figures) == "1,455"
