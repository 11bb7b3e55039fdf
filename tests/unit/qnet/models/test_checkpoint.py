"""A checkpoint is served only when every byte and shape of it is what its manifest says."""

import json
from pathlib import Path
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.checkpoint import load_policy, load_qnet, save_checkpoint
from qguide.qnet.models.manifest import MANIFEST, Manifest, sha256_of
from qguide.qnet.models.qnet import QNet
from qguide.training.small_models import train_tokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a policy and a Q model, which tests copy."""
    saved = tmp_path_factory.mktemp("saved")
    tokenizer = train_tokenizer(["go to desk 1"] * 5, vocab_size=300)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    manifest = Manifest(kind="policy", name="tiny")
    save_checkpoint(saved / "policy", model=LlamaForCausalLM(config), tokenizer=tokenizer, manifest=manifest)
    save_checkpoint(
        saved / "qnet",
        model=QNet.from_trunk(saved / "policy", head_width=16),
        tokenizer=load_policy(saved / "policy").renderer.tokenizer,
        manifest=Manifest(kind="qnet", name="q", read_at="last_token"),
    )
    return saved


@pytest.fixture
def policy_folder(saved: Path, tmp_path: Path) -> Path:
    copytree(saved, tmp_path, dirs_exist_ok=True)
    return tmp_path / "policy"


@pytest.fixture
def qnet_folder(policy_folder: Path) -> Path:
    return policy_folder.with_name("qnet")


def reseal(folder: Path) -> None:
    """Make the manifest's hashes true again after a change."""
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"] = {name: sha256_of(folder / name) for name in manifest["files"]}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_a_qnet_scores_the_same_after_the_way_through_its_folder(qnet_folder: Path) -> None:
    ids = torch.arange(20)[None]
    first, second = load_qnet(qnet_folder), load_qnet(qnet_folder)
    assert torch.equal(first.model(ids), second.model(ids))
    assert first.model(ids).shape == (1, 20)
    assert first.manifest.read_at == "last_token"


def test_the_trunk_of_a_new_qnet_is_the_policy(policy_folder: Path, qnet_folder: Path) -> None:
    ids = torch.arange(20)[None]
    policy, qnet = load_policy(policy_folder), load_qnet(qnet_folder)
    hidden = policy.model.base_model(ids).last_hidden_state
    assert torch.equal(hidden, qnet.model.trunk(ids).last_hidden_state)


def test_a_changed_byte_is_refused(qnet_folder: Path) -> None:
    with (qnet_folder / "config.json").open("a") as file:
        file.write(" ")
    with pytest.raises(CheckpointError, match=r"config\.json .*sha256 .*manifest\.json"):
        load_qnet(qnet_folder)


def test_a_missing_file_is_refused(qnet_folder: Path) -> None:
    (qnet_folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json .*manifest .*folder"):
        load_qnet(qnet_folder)


def test_weights_that_are_not_finite_are_refused(qnet_folder: Path) -> None:
    weights = load_file(qnet_folder / "model.safetensors")
    weights["head.out.bias"] = torch.tensor([float("nan")])
    save_file(weights, qnet_folder / "model.safetensors", metadata={"format": "pt"})
    reseal(qnet_folder)
    with pytest.raises(CheckpointError, match=r"head\.out\.bias .*finite"):
        load_qnet(qnet_folder)


def test_missing_weights_are_refused(qnet_folder: Path) -> None:
    weights = load_file(qnet_folder / "model.safetensors")
    del weights["head.out.bias"]
    save_file(weights, qnet_folder / "model.safetensors", metadata={"format": "pt"})
    reseal(qnet_folder)
    with pytest.raises(CheckpointError, match=r"config\.json \(missing \['head\.out\.bias'\]"):
        load_qnet(qnet_folder)


def test_a_policy_is_not_taken_for_a_qnet(policy_folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"policy .*policy, .*qnet"):
        load_qnet(policy_folder)


def test_another_renderer_version_is_refused(qnet_folder: Path) -> None:
    manifest = json.loads((qnet_folder / MANIFEST).read_text()) | {"renderer_version": "0"}
    (qnet_folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="renderer 0"):
        load_qnet(qnet_folder)


def test_a_hugging_face_folder_without_a_manifest_is_a_policy(policy_folder: Path) -> None:
    (policy_folder / MANIFEST).unlink()
    loaded = load_policy(policy_folder)
    assert loaded.manifest is None
    assert loaded.name == "policy"


def test_a_qnet_without_a_manifest_is_refused(qnet_folder: Path) -> None:
    (qnet_folder / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match=r"manifest\.json .*classifier"):
        load_qnet(qnet_folder)


def test_a_manifest_that_names_files_elsewhere_is_refused(qnet_folder: Path) -> None:
    manifest = json.loads((qnet_folder / MANIFEST).read_text())
    manifest["files"]["../policy/config.json"] = "0"
    (qnet_folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"\.\./policy/config\.json .*manifest .*folder"):
        load_qnet(qnet_folder)


def test_a_file_that_nobody_vouches_for_is_refused(qnet_folder: Path) -> None:
    (qnet_folder / "added_tokens.json").write_text('{"[SECRET]": 3}')
    with pytest.raises(CheckpointError, match=r"added_tokens\.json .*sha256 .*manifest\.json"):
        load_qnet(qnet_folder)


def test_a_file_in_a_subfolder_that_nobody_vouches_for_is_refused(qnet_folder: Path, tmp_path: Path) -> None:
    templates = qnet_folder / "additional_chat_templates"
    templates.mkdir()
    (templates / "brief.jinja").write_text("{{ messages }}")
    with pytest.raises(CheckpointError, match=r"additional_chat_templates/brief\.jinja .*sha256"):
        load_qnet(qnet_folder)
    templates.rename(tmp_path / "elsewhere")
    templates.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"additional_chat_templates .*sha256"):
        load_qnet(qnet_folder)


def test_weights_that_the_model_lacks_are_refused(qnet_folder: Path) -> None:
    weights = load_file(qnet_folder / "model.safetensors") | {"head.extra": torch.ones(2)}
    save_file(weights, qnet_folder / "model.safetensors", metadata={"format": "pt"})
    reseal(qnet_folder)
    with pytest.raises(CheckpointError, match=r"unused \['head\.extra'\]"):
        load_qnet(qnet_folder)


def test_weights_of_another_shape_are_refused(qnet_folder: Path) -> None:
    weights = load_file(qnet_folder / "model.safetensors") | {"head.out.bias": torch.ones(3)}
    save_file(weights, qnet_folder / "model.safetensors", metadata={"format": "pt"})
    reseal(qnet_folder)
    with pytest.raises(CheckpointError, match=r"head\.out\.bias"):
        load_qnet(qnet_folder)


def test_q_read_at_another_place_is_refused(qnet_folder: Path) -> None:
    manifest = json.loads((qnet_folder / MANIFEST).read_text()) | {"read_at": "action_tokens"}
    (qnet_folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="read_at is 'action_tokens'"):
        load_qnet(qnet_folder)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model.safetensors", r"\(SafetensorError:"),
        ("config.json", r"\(OSError: .*config\.json"),
        ("tokenizer.json", r"tokenizer .*\(UnicodeDecodeError:"),
    ],
)
def test_a_file_that_was_sealed_broken_is_refused(qnet_folder: Path, name: str, said: str) -> None:
    (qnet_folder / name).write_bytes(b"{\xff")
    reseal(qnet_folder)
    with pytest.raises(CheckpointError, match=said):
        load_qnet(qnet_folder)


def test_a_tokenizer_of_another_model_is_refused(qnet_folder: Path) -> None:
    tokenizer = load_qnet(qnet_folder).renderer.tokenizer
    tokenizer.add_tokens(["unheard-of"])
    tokenizer.save_pretrained(qnet_folder)
    reseal(qnet_folder)
    with pytest.raises(CheckpointError, match=r"tokenizer .*270 .*269"):
        load_qnet(qnet_folder)
