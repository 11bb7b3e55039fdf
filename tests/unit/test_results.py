"""The published figures are those of the models that ship."""

import json
from pathlib import Path

import pytest

from qguide.training.rollouts.models import EMBEDDED, model_folder, weights_sha256

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("name", ["embedded_valid_seen", "embedded_textworld", "embedded_validation"])
def test_results_of_the_embedded_models_are_of_those_that_ship(name: str) -> None:
    config = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["config"]
    assert config["policy_sha256"] == weights_sha256(model_folder(EMBEDDED, "policy"))
    assert config["qnet_sha256"] == weights_sha256(model_folder(EMBEDDED, "qnet"))


@pytest.mark.parametrize("name", ["embedded_verifier", "embedded_verifier_of_four", "embedded_beams"])
def test_what_was_tried_was_drawn_by_the_policy_that_ships(name: str) -> None:
    results = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert results["config"]["policy_sha256"] == weights_sha256(model_folder(EMBEDDED, "policy"))
    assert results["complete"]
    verifiers = {
        json.loads((RESULTS / f"{other}.json").read_text(encoding="utf-8"))["config"]["verifier_sha256"]
        for other in (name, "embedded_verifier")
    }
    assert len(verifiers) == 1
