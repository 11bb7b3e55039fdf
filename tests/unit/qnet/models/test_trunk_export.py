"""A checkpoint's trunk and head, taken apart, are the checkpoint's."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, Qwen3MoeConfig

from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.checkpoint import load_qnet, save_checkpoint
from qguide.qnet.models.manifest import MANIFEST, Manifest, sha256_of
from qguide.qnet.models.qnet import QNet
from qguide.qnet.models.qnet_config import QNetConfig
from qguide.qnet.models.remote_trunk import trunk_name
from qguide.qnet.models.trunk_export import INDEX, export_trunk, load_head
from tests.support.tiny_models import ARCHITECTURES, renderer, save_policy, save_qnet

TOKENS = torch.tensor([[5, 9, 2, 7, 11, 3]])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a policy and a Q model, which tests copy."""
    folder = tmp_path_factory.mktemp("saved")
    return save_qnet(folder / "qnet", save_policy(folder / "policy")).parent


@pytest.fixture
def checkpoint(saved: Path, tmp_path: Path) -> Path:
    copytree(saved, tmp_path, dirs_exist_ok=True)
    return tmp_path / "qnet"


def q_of_the_parts(checkpoint: Path, trunk: Path) -> torch.Tensor:
    model = AutoModel.from_pretrained(trunk, local_files_only=True, dtype=torch.float32).eval()
    hidden_BTD = model(TOKENS).last_hidden_state
    q_BT: torch.Tensor = load_head(checkpoint).head(hidden_BTD)
    return q_BT


def rewrite_manifest(checkpoint: Path, **changes: object) -> None:
    """Other fields, and the hashes of the files as they are now."""
    manifest = read_manifest_fields(checkpoint)
    files = [p for p in checkpoint.iterdir() if p.name != MANIFEST]
    hashes = {path.name: sha256_of(path) for path in files}
    text = json.dumps(manifest | {"files": hashes} | changes)
    (checkpoint / MANIFEST).write_text(text)


def rewrite_weights(checkpoint: Path, **changes: torch.Tensor) -> None:
    path = checkpoint / "model.safetensors"
    save_file(load_file(path) | changes, path, metadata={"format": "pt"})


def rewrite_config(checkpoint: Path, **changes: object) -> None:
    fields = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(fields | changes))


def change_trunk_config(checkpoint: Path, **changes: object) -> None:
    fields = json.loads((checkpoint / "config.json").read_text())
    rewrite_config(checkpoint, trunk=fields["trunk"] | changes)


def assert_refused(checkpoint: Path, reason: str) -> None:
    """As a head and as a trunk, of which nothing is written."""
    rewrite_manifest(checkpoint)
    with pytest.raises(CheckpointError, match=reason):
        load_head(checkpoint)
    with pytest.raises(CheckpointError, match=reason):
        export_trunk(checkpoint, checkpoint.parent / "trunk")
    assert not list(checkpoint.parent.glob("trunk*"))


def read_manifest_fields(checkpoint: Path) -> dict[str, object]:
    fields: dict[str, object] = json.loads((checkpoint / MANIFEST).read_text())
    return fields


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_parts_together_are_the_whole(architecture: str, tmp_path: Path) -> None:
    policy = save_policy(tmp_path / "policy", architecture)
    checkpoint = save_qnet(tmp_path / "qnet", policy)
    name = export_trunk(checkpoint, tmp_path / "trunk")
    with torch.inference_mode():
        together = q_of_the_parts(checkpoint, tmp_path / "trunk")
        whole = load_qnet(checkpoint).model(TOKENS)
    torch.testing.assert_close(together, whole, rtol=0, atol=1e-6)
    assert name == load_head(checkpoint).trunk_name
    config = json.loads((tmp_path / "trunk" / "config.json").read_text())
    assert config["architectures"][0].lower() == f"{architecture}model"
    assert {p.name for p in (tmp_path / "trunk").iterdir()} >= {"tokenizer.json"}
    assert not (tmp_path / "trunk" / MANIFEST).exists()


def test_weights_in_several_files_stay_in_several(checkpoint: Path, tmp_path: Path) -> None:
    whole = load_file(checkpoint / "model.safetensors")
    names = sorted(whole)
    (checkpoint / "model.safetensors").unlink()
    shards = {f"model-0000{i + 1}-of-00003.safetensors": names[i::3] for i in range(3)}
    for file, mine in shards.items():
        save_file({n: whole[n] for n in mine}, checkpoint / file, metadata={"format": "pt"})
    weight_map = {name: file for file, mine in shards.items() for name in mine}
    (checkpoint / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    rewrite_manifest(checkpoint)
    export_trunk(checkpoint, tmp_path / "trunk")
    assert len(list((tmp_path / "trunk").glob("*.safetensors"))) == 3
    with torch.inference_mode():
        together = q_of_the_parts(checkpoint, tmp_path / "trunk")
        torch.testing.assert_close(together, load_qnet(checkpoint).model(TOKENS))


def test_a_mixtures_experts_are_found_one_by_one(tmp_path: Path) -> None:
    trunk = Qwen3MoeConfig(
        vocab_size=len(renderer().tokenizer),
        hidden_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
    )
    qnet = QNet(QNetConfig(trunk=trunk.to_dict(), head_width=16))
    manifest = Manifest(kind="qnet", name="tiny-q", read_at="last_token")
    checkpoint = tmp_path / "qnet"
    save_checkpoint(checkpoint, model=qnet, tokenizer=renderer().tokenizer, manifest=manifest)
    assert "trunk.layers.0.mlp.experts.0.up_proj.weight" in load_file(checkpoint / "model.safetensors")
    export_trunk(checkpoint, tmp_path / "trunk")
    with torch.inference_mode():
        together = q_of_the_parts(checkpoint, tmp_path / "trunk")
        torch.testing.assert_close(together, load_qnet(checkpoint).model(TOKENS))


def test_a_head_in_half_precision_is_read_in_float32(checkpoint: Path, tmp_path: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    half = {name: weight.bfloat16() for name, weight in weights.items()}
    save_file(half, checkpoint / "model.safetensors", metadata={"format": "pt"})
    rewrite_manifest(checkpoint)
    parameters = load_head(checkpoint).head.parameters()
    assert {parameter.dtype for parameter in parameters} == {torch.float32}
    export_trunk(checkpoint, tmp_path / "trunk")
    assert json.loads((tmp_path / "trunk" / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_trunks_name_changes_with_the_weights(checkpoint: Path) -> None:
    before = load_head(checkpoint)
    weights = load_file(checkpoint / "model.safetensors")
    weights["trunk.norm.weight"] += 1
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="sha256"):
        load_head(checkpoint)
    rewrite_manifest(checkpoint)
    assert load_head(checkpoint).trunk_name != before.trunk_name
    assert before.trunk_name.startswith("tiny-q@")


def test_the_renderer_is_the_checkpoints(checkpoint: Path) -> None:
    loaded = load_head(checkpoint)
    assert loaded.renderer.tokenizer.get_vocab() == renderer().tokenizer.get_vocab()
    assert loaded.name == "tiny-q"


def test_a_folder_that_exists_is_left_alone(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "trunk").mkdir()
    with pytest.raises(CheckpointError, match="/trunk exists"):
        export_trunk(checkpoint, tmp_path / "trunk")


def test_only_a_qnet_has_parts(checkpoint: Path, tmp_path: Path) -> None:
    rewrite_manifest(checkpoint, kind="implicit-q")
    for refused, kind in ((checkpoint, "implicit-q"), (tmp_path / "policy", r"manifest\.json")):
        with pytest.raises(CheckpointError, match=f"{kind}; .*qnet"):
            load_head(refused)
        with pytest.raises(CheckpointError, match=f"{kind}; .*qnet"):
            export_trunk(refused, tmp_path / "trunk")


def test_a_head_that_is_not_whole_is_refused(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    weights = load_file(path)
    rewrite_weights(checkpoint, **{"head.out.bias": torch.tensor([torch.nan])})
    assert_refused(checkpoint, r"model\.safetensors: head\.out\.bias holds values")
    save_file({n: w for n, w in weights.items() if n != "head.out.bias"}, path)
    assert_refused(checkpoint, r"do not fit config\.json \(missing \['head\.out\.bias'\]")


def test_a_trunk_that_is_not_finite_is_refused(checkpoint: Path) -> None:
    rewrite_weights(checkpoint, **{"trunk.norm.weight": torch.full((32,), torch.nan)})
    assert_refused(checkpoint, r"trunk\.norm\.weight holds values that are not finite; train")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_hidden_layers": 1}, r"unused \['trunk\.layers\.1\."),
        ({"num_hidden_layers": 3}, r"missing \['trunk\.layers\.2\."),
        ({"intermediate_size": 50}, r"mlp\.down_proj\.weight', \(32, 48\), \(32, 50\)"),
    ],
)
def test_a_trunk_of_another_shape_is_refused(changes: dict[str, object], reason: str, checkpoint: Path) -> None:
    change_trunk_config(checkpoint, **changes)
    assert_refused(checkpoint, reason)


def test_a_tokenizer_of_another_model_is_refused(checkpoint: Path) -> None:
    tokenizer: Any = load_head(checkpoint).renderer.tokenizer
    tokenizer.add_tokens(["unheard-of"])
    tokenizer.save_pretrained(checkpoint)
    assert_refused(checkpoint, "different tokens; the model knows .* save it with the tokenizer")


def test_q_read_at_another_place_is_refused(checkpoint: Path) -> None:
    rewrite_manifest(checkpoint, read_at="action_tokens")
    assert_refused(checkpoint, "read_at is 'action_tokens'")


def truncate_weights(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def break_config(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text("{")


def break_tokenizer(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").write_text("{}")


def break_head_width(checkpoint: Path) -> None:
    rewrite_config(checkpoint, head_width="x")


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (truncate_weights, r"model\.safetensors does not load \(SafetensorError: "),
        (break_config, r"config\.json does not load \(OSError: "),
        (break_tokenizer, r"the tokenizer does not load \(KeyError: "),
        (break_head_width, r"config\.json does not load \(TypeError: "),
    ],
)
def test_a_file_that_was_sealed_broken_is_refused(damage: Callable[[Path], None], what: str, checkpoint: Path) -> None:
    damage(checkpoint)
    assert_refused(checkpoint, rf"(?s){what}.*; copy it again")


def test_a_manifest_that_vouches_for_no_weights_is_refused(checkpoint: Path) -> None:
    for weights in checkpoint.glob("*.safetensors"):
        weights.unlink()
    rewrite_manifest(checkpoint)
    with pytest.raises(CheckpointError, match=r"manifest\.json .*weights"):
        load_head(checkpoint)


def test_the_name_depends_on_nothing_but_weights_and_configuration() -> None:
    one = Manifest(kind="qnet", name="q", files={"config.json": "1", "a.safetensors": "2"})
    other = one.model_copy(update={"files": {**one.files, "tokenizer.json": "3"}})
    assert trunk_name(one) == trunk_name(other)
    changed = one.model_copy(update={"files": {**one.files, "config.json": "4"}})
    assert trunk_name(one) != trunk_name(changed)


def test_features_that_this_version_does_not_compute_are_refused_by_name(tmp_path: Path) -> None:
    policy = save_policy(tmp_path / "policy")
    checkpoint = save_qnet(tmp_path / "qnet", policy, head_features="match-1")
    rewrite_config(checkpoint, head_features="match-9")
    assert_refused(checkpoint, r"head_features is 'match-9'; this version .* match-1")
    with pytest.raises(CheckpointError, match="head_features is 'match-9'"):
        load_qnet(checkpoint)


def test_a_head_that_reads_features_is_not_read_without_them(tmp_path: Path) -> None:
    policy = save_policy(tmp_path / "policy")
    loaded = load_qnet(save_qnet(tmp_path / "qnet", policy, head_features="match-1"))
    with pytest.raises(ValueError, match=r"match-1, .*features"):
        loaded.model(TOKENS)
