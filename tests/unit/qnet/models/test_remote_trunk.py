"""A checkpoint without its trunk, read without torch, is what torch reads of it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.manifest import MANIFEST, sha256_of
from qguide.qnet.models.match_features import MATCH_FEATURES
from qguide.qnet.models.options import HeadFeatures, HeadKind
from qguide.qnet.models.qnet import ValueHead
from qguide.qnet.models.qnet_config import QNetConfig
from qguide.qnet.models.remote_trunk import ArrayHead, head_shapes, load_remote_trunk
from qguide.qnet.models.trunk_export import load_head
from tests.support.tiny_models import save_policy, save_qnet

D, WIDTH = 32, 16
KINDS: list[tuple[HeadKind, HeadFeatures, int]] = [
    ("mlp", "none", 0),
    ("mlp", "match-1", 0),
    ("mlp", "none", 21),
    ("mlp", "match-1", 21),
    ("linear", "none", 0),
]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save_qnet(tmp_path / "qnet", save_policy(tmp_path / "policy"))


def seal(checkpoint: Path, **changes: torch.Tensor | None) -> None:
    """Other weights, and a manifest that vouches for them; None leaves one out."""
    path = checkpoint / "model.safetensors"
    weights = load_file(path) | changes
    kept = {name: weight for name, weight in weights.items() if weight is not None}
    save_file(kept, path, metadata={"format": "pt"})
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    manifest["files"] |= {name: sha256_of(checkpoint / name) for name in manifest["files"]}
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(("kind", "features", "bins"), KINDS)
def test_a_head_on_arrays_gives_the_q_of_the_head_in_torch(kind: HeadKind, features: HeadFeatures, bins: int) -> None:
    torch.manual_seed(0)
    config = QNetConfig(head=kind, head_width=WIDTH, head_features=features, head_bins=bins)
    reference = ValueHead(D, WIDTH, kind=kind, features=features, bins=bins).requires_grad_(False)
    weights = {name: weight.numpy() for name, weight in reference.state_dict().items()}
    assert {name: weight.shape for name, weight in weights.items()} == head_shapes(config, D)
    hidden_BD = 3 * torch.randn(7, D)
    features_BF = torch.randn(7, len(MATCH_FEATURES)) if features != "none" else None
    expected_B = reference(hidden_BD, features_BF)
    found_B = ArrayHead(config, weights)(hidden_BD.numpy(), None if features_BF is None else features_BF.numpy())
    scale = float(expected_B.abs().max())
    torch.testing.assert_close(torch.from_numpy(found_B), expected_B, rtol=0, atol=1e-5 * scale)
    assert found_B.dtype == np.float32


def test_a_head_that_reads_features_is_not_read_without_them() -> None:
    config = QNetConfig(head_width=WIDTH, head_features="match-1")
    shapes = head_shapes(config, D).items()
    head = ArrayHead(config, {name: np.zeros(shape, np.float32) for name, shape in shapes})
    with pytest.raises(ValueError, match=r"match-1, .*none"):
        head(np.zeros((1, D), np.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_all_but_the_trunk_is_what_torch_reads(checkpoint: Path, dtype: torch.dtype) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    seal(checkpoint, **{name: weight.to(dtype) for name, weight in weights.items()})
    remote, whole = load_remote_trunk(checkpoint), load_head(checkpoint)
    assert remote.head._weights.keys() == whole.head.state_dict().keys()
    for name, weight in whole.head.state_dict().items():
        np.testing.assert_array_equal(remote.head._weights[name], weight.numpy())
    assert (remote.name, remote.trunk_name) == (whole.name, whole.trunk_name)
    assert remote.trunk.to_dict() == whole.trunk.to_dict()
    assert remote.manifest == whole.manifest


def test_a_head_that_is_not_whole_is_refused(checkpoint: Path) -> None:
    bias = load_file(checkpoint / "model.safetensors")["head.out.bias"]
    seal(checkpoint, **{"head.out.bias": bias.clone().fill_(torch.nan)})
    with pytest.raises(CheckpointError, match=r"head\.out\.bias .*finite"):
        load_remote_trunk(checkpoint)
    seal(checkpoint, **{"head.out.bias": torch.zeros(2)})
    with pytest.raises(CheckpointError, match=r"mismatched \[\('head\.out\.bias', \(2,\), \(1,\)"):
        load_remote_trunk(checkpoint)
    seal(checkpoint, **{"head.out.bias": None})
    with pytest.raises(CheckpointError, match=r"missing \['head\.out\.bias'\]"):
        load_remote_trunk(checkpoint)
    seal(checkpoint, **{"head.out.bias": bias, "head.more": bias.clone()})
    with pytest.raises(CheckpointError, match=r"unused \['head\.more'\]"):
        load_remote_trunk(checkpoint)


def test_a_file_that_was_sealed_broken_is_refused(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    seal(checkpoint)
    path.write_bytes(path.read_bytes()[:4])
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    manifest["files"][path.name] = sha256_of(path)
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"model\.safetensors .*\(JSONDecodeError:"):
        load_remote_trunk(checkpoint)
