"""A QNet whose trunk runs on a server: its value head, tokenizer and configuration are here.

Nothing here needs torch. The trunk's own weights are not looked at beyond their hashes: the server
runs what `qguide export-trunk` has checked and written, under a name that these weights make.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PretrainedConfig

from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.array_head import ArrayHead, head_shapes
from qguide.qnet.models.hub import model_folder
from qguide.qnet.models.loading import broken_refused, load_fitting_renderer, require_fit
from qguide.qnet.models.manifest import MANIFEST, Manifest, read_manifest, require_read_at
from qguide.qnet.models.qnet_config import QNetConfig, nested_config
from qguide.qnet.rendering.renderer import Renderer

CONFIG = "config.json"
WEIGHTS = ".safetensors"
HEAD = "head."
_SHOWN_HASH = 12
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class RemoteTrunk:
    """A Q model whose trunk runs elsewhere.

    Attributes:
        head: in float32.
        trunk: its configuration.
        trunk_name: what the server of the trunk must call it.
    """

    name: str
    head: ArrayHead
    trunk: PretrainedConfig
    trunk_name: str
    renderer: Renderer
    manifest: Manifest


def load_remote_trunk(directory: Path) -> RemoteTrunk:
    """Everything of a QNet checkpoint but its trunk."""
    directory = model_folder(directory)
    manifest = require_qnet(directory)
    with broken_refused(str(directory / CONFIG)):
        config = QNetConfig.from_pretrained(directory, local_files_only=True)
        trunk = nested_config(config.trunk, "trunk")
    renderer = load_fitting_renderer(directory, int(trunk.vocab_size), manifest)
    weights = _checked_head(directory, manifest, head_shapes(config, int(trunk.hidden_size)))
    head = ArrayHead(config, weights)
    return RemoteTrunk(manifest.name, head, trunk, trunk_name(manifest), renderer, manifest)


def trunk_name(manifest: Manifest) -> str:
    """The checkpoint's name and a hash of its weights and configuration."""
    parts = sorted(
        f"{name} {sha256}"
        for name, sha256 in manifest.files.items()
        if name == CONFIG or name.endswith(WEIGHTS)
    )
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return f"{manifest.name}@{digest[:_SHOWN_HASH]}"


def require_qnet(directory: Path) -> Manifest:
    """The manifest of a QNet checkpoint."""
    manifest = read_manifest(directory)
    if manifest is None or manifest.kind != "qnet":
        kind = manifest.kind if manifest else f"a folder without {MANIFEST}"
        raise CheckpointError(f"{directory} is {kind}; only a qnet has a trunk and a value head")
    require_read_at(directory, manifest)
    if not any(name.endswith(WEIGHTS) for name in manifest.files):
        raise CheckpointError(f"{directory}: {MANIFEST} lists no weights; train the Q model again")
    return manifest


def _checked_head(
    directory: Path, manifest: Manifest, shapes: dict[str, tuple[int, ...]]
) -> dict[str, NDArray[np.float32]]:
    found = dict(_head_weights(directory, manifest))
    both = found.keys() & shapes.keys()
    require_fit(
        directory,
        missing=[HEAD + name for name in shapes.keys() - found.keys()],
        mismatched=[
            (HEAD + name, found[name].shape, shapes[name])
            for name in both
            if found[name].shape != shapes[name]
        ],
        unused=[HEAD + name for name in found.keys() - shapes.keys()],
    )
    for name, weight in found.items():
        if not np.isfinite(weight).all():
            raise CheckpointError(
                f"{directory}: {HEAD}{name} holds values that are not finite; train it again"
            )
    return found


def _head_weights(directory: Path, manifest: Manifest) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Name without the prefix, and value in float32, of each weight of the head."""
    for file in sorted(name for name in manifest.files if name.endswith(WEIGHTS)):
        path = directory / file
        with broken_refused(str(path)), path.open("rb") as opened:
            # The format's own reader knows no bfloat16 without torch: the file begins with the
            # length of a JSON header, whose offsets count from the header's end.
            length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
            header: dict[str, Any] = json.loads(opened.read(length))
            for name, entry in header.items():
                if name.startswith(HEAD):
                    start, end = entry["data_offsets"]
                    opened.seek(_LENGTH_BYTES + length + start)
                    raw = opened.read(end - start)
                    yield name.removeprefix(HEAD), _array(raw, entry["dtype"], entry["shape"])


def _array(raw: bytes, dtype: str, shape: list[int]) -> NDArray[np.float32]:
    if dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").reshape(shape)
    kind = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}[dtype]
    return np.frombuffer(raw, kind).reshape(shape).astype(np.float32)
