"""A QNet whose trunk runs on a server: its value head, tokenizer and configuration are here.

Nothing here needs torch. The trunk's own weights are not looked at beyond their hashes: the server
runs what `qguide export-trunk` has checked and written, under a name that these weights make.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PretrainedConfig

from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.hub import model_folder
from qguide.qnet.models.loading import broken_refused, load_fitting_renderer, require_shapes
from qguide.qnet.models.manifest import MANIFEST, Manifest, read_manifest, require_read_at
from qguide.qnet.models.match_features import MATCH_FEATURES
from qguide.qnet.models.options import HeadFeatures
from qguide.qnet.models.qnet_config import MATCH_WIDTH, QNetConfig, nested_config
from qguide.qnet.rendering.renderer import Renderer

Array = NDArray[np.float32]


class ArrayHead:
    """The value head in float32, of weights that have `ValueHead`'s names and the shapes of `head_shapes`."""

    def __init__(self, config: QNetConfig, weights: Mapping[str, Array]) -> None:
        self.features: HeadFeatures = config.head_features
        self._weights = dict(weights)
        self._centers: Array | None = None
        if config.head_bins:
            edges = np.linspace(*config.head_range, config.head_bins + 1, dtype=np.float32)
            self._centers = (edges[:-1] + edges[1:]) * np.float32(0.5)

    def __call__(self, hidden_BD: Array, features_BF: Array | None = None) -> Array:
        """q (B,) of each hidden state and, where the head reads them, its features."""
        # What is not finite is one candidate's answer, no reason to warn of all.
        with np.errstate(all="ignore"):
            if self.features != "none":
                if features_BF is None:
                    raise ValueError(f"the value head reads {self.features}, but was given none")
                matched = self._layers("match", features_BF)
                hidden_BD = np.concatenate([hidden_BD, matched], axis=-1)
            inner = self._layers("hidden", hidden_BD) if self._has("hidden") else hidden_BD
            return self._q_of(self._linear("out", inner))

    def _q_of(self, outputs_BK: Array) -> Array:
        if self._centers is None:
            return outputs_BK[:, 0]
        shifted = np.exp(outputs_BK - outputs_BK.max(-1, keepdims=True))
        q_B: Array = (shifted @ self._centers) / shifted.sum(-1)
        return q_B

    def _layers(self, part: str, inputs: Array) -> Array:
        for index in (0, 2):  # the odd ones are the activations
            inputs = np.maximum(self._linear(f"{part}.{index}", inputs), 0)
        return inputs

    def _linear(self, name: str, inputs: Array) -> Array:
        outputs: Array = inputs @ self._weights[f"{name}.weight"].T
        bias = self._weights.get(f"{name}.bias")
        return outputs if bias is None else outputs + bias

    def _has(self, part: str) -> bool:
        return f"{part}.0.weight" in self._weights


def head_shapes(config: QNetConfig, hidden_size: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a value head's weights."""
    if config.head == "linear":
        return {"out.weight": (1, hidden_size)}
    width, matched = config.head_width, MATCH_WIDTH if config.head_features != "none" else 0
    layers = {
        "hidden.0": (width, hidden_size + matched),
        "hidden.2": (width, width),
        "out": (config.head_bins or 1, width),
    }
    if matched:
        layers |= {"match.0": (matched, len(MATCH_FEATURES)), "match.2": (matched, matched)}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in layers.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


CONFIG = "config.json"
WEIGHTS = ".safetensors"
HEAD = "head."
_SHOWN_HASH = 12
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class RemoteTrunk:
    """A Q model whose trunk runs elsewhere.

    Attributes:
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
        f"{name} {sha256}" for name, sha256 in manifest.files.items() if name == CONFIG or name.endswith(WEIGHTS)
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
    described = {HEAD + name: shape for name, shape in shapes.items()}
    require_shapes(directory, {HEAD + name: weight.shape for name, weight in found.items()}, described)
    for name, weight in found.items():
        if not np.isfinite(weight).all():
            raise CheckpointError(f"{directory}: {HEAD}{name} holds values that are not finite; train it again")
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
