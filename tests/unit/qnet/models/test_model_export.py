"""An exported QNet gives the Q of its checkpoint where other programs load it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    CohereConfig,
    PretrainedConfig,
    Qwen3MoeConfig,
)
from typer.testing import CliRunner

from qguide.cli import app
from qguide.qnet.errors import CheckpointError
from qguide.qnet.features.domain import Domain
from qguide.qnet.models.checkpoint import load_qnet, save_checkpoint
from qguide.qnet.models.manifest import MANIFEST, Licence, Manifest, PriorSection
from qguide.qnet.models.model_export import export_model
from qguide.qnet.models.qnet import QNet
from qguide.qnet.models.qnet_config import QNetConfig
from qguide.qnet.scoring.value_head import NaiveScorer
from qguide.qnet.types import Message, ScoreRequest
from qguide.training.licence.domain import fit_domain, put_domain
from tests.support.tiny_models import ARCHITECTURES, renderer, save_policy, save_qnet

HISTORY = (Message("user", "go to desk take mug"),)
SHAPE: dict[str, Any] = {
    "vocab_size": len(renderer().tokenizer),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SAID = tuple(Message("assistant", text) for text in ("take mug", "go", "open shelf from desk"))


def sequences() -> list[list[int]]:
    state = renderer().encode_history(HISTORY)
    return [[*state, *renderer().encode_candidate(said)] for said in SAID]


def q_values(checkpoint: Path) -> tuple[float, ...]:
    [result] = NaiveScorer(load_qnet(checkpoint)).score([ScoreRequest(HISTORY, SAID)])
    assert len(set(result.q_values)) == len(SAID)
    return result.q_values


def embeddings(folder: Path) -> list[float]:
    """Outputs of the folder's modules, applied one after the other as their files say."""
    modules = json.loads((folder / "modules.json").read_text())
    transformer, pooling, *dense = modules
    assert [one["type"].rpartition(".")[2] for one in modules] == ["Transformer", "Pooling", *["Dense"] * 3]
    assert transformer["path"] == ""
    pooled = json.loads((folder / pooling["path"] / "config.json").read_text())
    assert [key for key, value in pooled.items() if value is True] == ["pooling_mode_lasttoken"]
    trunk = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    layers: list[nn.Module] = []
    for one in dense:
        config = json.loads((folder / one["path"] / "config.json").read_text())
        weights = load_file(folder / one["path"] / "model.safetensors")
        layer = nn.Linear(config["in_features"], config["out_features"], bias=config["bias"])
        layer.load_state_dict({k.removeprefix("linear."): v for k, v in weights.items()})
        activation = getattr(nn, config["activation_function"].rpartition(".")[2])
        layers += [layer, activation()]
    with torch.inference_mode():
        states = [trunk(torch.tensor([one])).last_hidden_state[0, -1] for one in sequences()]
        return [float(nn.Sequential(*layers)(state)) for state in states]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_modules_of_an_mlp_give_q(architecture: str, tmp_path: Path) -> None:
    checkpoint = save_qnet(tmp_path / "q", save_policy(tmp_path / "policy", architecture))
    assert export_model(checkpoint, tmp_path / "exported") == "sentence-transformers"
    assert embeddings(tmp_path / "exported") == pytest.approx(q_values(checkpoint), abs=1e-5)


def logits(folder: Path) -> list[list[float]]:
    """Of each sequence alone, and of all as one padded batch, by transformers alone."""
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.num_labels == 1
    assert model.config.pad_token_id == tokenizer.pad_token_id
    batch = tokenizer.pad({"input_ids": sequences()}, return_tensors="pt")
    with torch.inference_mode():
        alone = [float(model(torch.tensor([one])).logits[0, 0]) for one in sequences()]
        return [alone, model(**batch).logits[:, 0].tolist()]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_linear_head_is_a_sequence_classifier(architecture: str, tmp_path: Path) -> None:
    policy = save_policy(tmp_path / "policy", architecture)
    checkpoint = save_qnet(tmp_path / "q", policy, head="linear")
    assert export_model(checkpoint, tmp_path / "exported") == "sequence-classification"
    for found in logits(tmp_path / "exported"):
        assert found == pytest.approx(q_values(checkpoint), abs=1e-5)


def save_linear(folder: Path, trunk: PretrainedConfig) -> Path:
    qnet = QNet(QNetConfig(trunk=trunk.to_dict(), head="linear"))
    manifest = Manifest(kind="qnet", name="linear", read_at="last_token")
    save_checkpoint(folder, model=qnet, tokenizer=renderer().tokenizer, manifest=manifest)
    return folder


def test_an_exported_classifier_keeps_licence_prior_and_domain(tmp_path: Path) -> None:
    checkpoint = save_qnet(tmp_path / "q", save_policy(tmp_path / "policy"), head="linear")
    manifest = Manifest.model_validate_json((checkpoint / MANIFEST).read_bytes())
    verdict = {"licence": Licence(granted=False, reason="at chance"), "prior": PriorSection(tau=0.2)}
    judged = manifest.model_copy(update=verdict)
    put_domain(checkpoint, judged, fit_domain([("", HISTORY)]))
    export_model(checkpoint, tmp_path / "exported")

    told = load_qnet(tmp_path / "exported").manifest
    assert {"licence": told.licence, "prior": told.prior} == verdict
    assert Domain.load(tmp_path / "exported") == Domain.load(checkpoint)


def test_the_experts_of_a_mixture_keep_their_names(tmp_path: Path) -> None:
    more: dict[str, Any] = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
    checkpoint = save_linear(tmp_path / "q", Qwen3MoeConfig(**SHAPE, **more))
    export_model(checkpoint, tmp_path / "exported")
    for found in logits(tmp_path / "exported"):
        assert found == pytest.approx(q_values(checkpoint), abs=1e-5)


def test_a_trunk_without_a_classifier_of_transformers_is_refused(tmp_path: Path) -> None:
    checkpoint = save_linear(tmp_path / "q", CohereConfig(**SHAPE, pad_token_id=0))
    with pytest.raises(CheckpointError, match=r"cohere; .*qguide export-trunk"):
        export_model(checkpoint, tmp_path / "exported")
    assert not list(tmp_path.glob("exported*"))


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ({"head_features": "match-1"}, "match-1 .*head_features = 'none'.*qguide export-trunk"),
        ({"head_bins": 11}, "11 bins.*head_bins = 0.*qguide export-trunk"),
    ],
)
def test_a_head_that_is_more_than_layers_is_refused(head: dict[str, Any], reason: str, tmp_path: Path) -> None:
    checkpoint = save_qnet(tmp_path / "q", save_policy(tmp_path / "policy"), **head)
    with pytest.raises(CheckpointError, match=reason):
        export_model(checkpoint, tmp_path / "exported")
    assert not list(tmp_path.glob("exported*"))


def test_a_linear_head_reads_the_hidden_state_alone() -> None:
    for other in ({"head_features": "match-1"}, {"head_bins": 11}):
        with pytest.raises(CheckpointError, match=r"head .*'linear' .*'none' and 0, .*'mlp'"):
            QNetConfig(head="linear", **other)


def test_the_command_names_the_format_and_keeps_what_is_there(tmp_path: Path) -> None:
    checkpoint = save_qnet(tmp_path / "q", save_policy(tmp_path / "policy"), head="linear")
    command = ["export-model", str(checkpoint), "--output", str(tmp_path / "exported")]
    assert CliRunner().invoke(app, command).output.strip() == "sequence-classification"
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 1
    assert "exists; remove it or name another folder" in again.output
