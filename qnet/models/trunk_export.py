"""A QNet in two parts: the trunk for a server of its own, the value head for this process.

`export_trunk` writes the trunk as any Hugging Face folder; `load_head` reads everything else. Both
name the trunk by a hash of the checkpoint, so that a head is never used with another trunk.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PretrainedConfig
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.checkpoint import require_finite
from qguide.qnet.models.hub import model_folder
from qguide.qnet.models.loading import broken_refused, load_fitting_renderer, require_shapes
from qguide.qnet.models.manifest import MANIFEST, Manifest
from qguide.qnet.models.qnet import QNet, ValueHead
from qguide.qnet.models.qnet_config import QNetConfig, nested_config
from qguide.qnet.models.remote_trunk import CONFIG, HEAD, WEIGHTS, require_qnet, trunk_name
from qguide.qnet.rendering.renderer import Renderer

INDEX = "model.safetensors.index.json"
TRUNK = "trunk."


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A QNet without its trunk's weights, to be written in another format."""

    name: str
    head: ValueHead
    trunk: PretrainedConfig
    trunk_name: str
    renderer: Renderer
    manifest: Manifest


def load_head(directory: Path) -> LoadedHead:
    """Everything of a QNet checkpoint but its trunk, whose weights are checked and not kept."""
    directory = model_folder(directory)
    manifest = require_qnet(directory)
    with broken_refused(str(directory / CONFIG)), torch.device("meta"):
        qnet = QNet(QNetConfig.from_pretrained(directory, local_files_only=True))
    renderer = load_fitting_renderer(directory, int(qnet.trunk.config.vocab_size), manifest)
    weights = _checked_head(directory, manifest, qnet)
    qnet.head.load_state_dict(weights, assign=True)
    return LoadedHead(
        manifest.name,
        qnet.head.eval().requires_grad_(False),
        qnet.trunk.config,
        trunk_name(manifest),
        renderer,
        manifest,
    )


def export_trunk(directory: Path, output: Path) -> str:
    """Write a QNet checkpoint's trunk as a Hugging Face folder; returns the trunk's name.

    One file of weights is in memory at a time. The folder appears when it is complete; nothing is
    written of a checkpoint that `load_head` refuses.
    """
    directory = model_folder(directory)
    with new_folder(output) as partial:
        manifest = load_head(directory).manifest
        write_trunk(directory, manifest, partial)
    return trunk_name(manifest)


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A folder that gets its name once it is complete."""
    if output.exists():
        raise CheckpointError(f"{output} exists; remove it or name another folder")
    partial = output.with_name(f"{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial)
        raise
    partial.rename(output)


def write_trunk(directory: Path, manifest: Manifest, output: Path) -> None:
    """Write a QNet checkpoint's trunk, with its tokenizer, into a folder."""
    dtype = write_weights(directory, manifest, output, {TRUNK: ""})
    _write_config(directory, dtype, output)
    copy_tokenizer(directory, manifest, output)


def copy_tokenizer(directory: Path, manifest: Manifest, output: Path) -> None:
    """Copy what is neither weights nor configuration."""
    for name in manifest.files:
        if name not in (CONFIG, INDEX, MANIFEST) and not name.endswith(WEIGHTS):
            shutil.copy2(directory / name, output / name)


def _checked_head(directory: Path, manifest: Manifest, qnet: QNet) -> dict[str, Tensor]:
    """The head's weights in float32, once the trunk's have been looked at one by one."""
    head: dict[str, Tensor] = {}
    found: dict[str, tuple[int, ...]] = {}
    for file, name, weight in _weights(directory, manifest):
        require_finite(directory / file, name, weight)
        found[name] = tuple(weight.shape)
        if name.startswith(HEAD):
            head[name.removeprefix(HEAD)] = weight.float()
    # Files may name weights otherwise than the model does: a mixture's experts one by one.
    described = revert_weight_conversion(qnet, qnet.state_dict())
    require_shapes(directory, found, {name: tuple(weight.shape) for name, weight in described.items()})
    return head


def _weights(directory: Path, manifest: Manifest) -> Iterator[tuple[str, str, Tensor]]:
    for file in sorted(name for name in manifest.files if name.endswith(WEIGHTS)):
        path = directory / file
        with broken_refused(str(path)), safe_open(path, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no mapping)
                yield file, name, opened.get_tensor(name)


def write_weights(directory: Path, manifest: Manifest, output: Path, renamed: Mapping[str, str]) -> torch.dtype:
    """Write some of a checkpoint's weights, file by file; returns their type.

    Args:
        renamed: the beginning of each wanted weight's name, and what takes its place.
    """
    weight_map: dict[str, str] = {}
    shard: dict[str, Tensor] = {}
    total, dtype, current = 0, torch.float32, ""

    def close_shard() -> None:
        if shard:
            save_file(shard, output / current, metadata={"format": "pt"})
            shard.clear()

    for file, full_name, weight in _weights(directory, manifest):
        wanted = [old for old in renamed if full_name.startswith(old)]
        if not wanted:
            continue
        if file != current:
            close_shard()
        name = renamed[wanted[0]] + full_name.removeprefix(wanted[0])
        current, dtype = file, weight.dtype
        shard[name], weight_map[name] = weight, file
        total += weight.nbytes
    close_shard()
    if len(set(weight_map.values())) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (output / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return dtype


def _write_config(directory: Path, dtype: torch.dtype, output: Path) -> None:
    config = trunk_config(directory)
    model_class: Any = MODEL_MAPPING[type(config)]
    config.architectures = [model_class.__name__]
    config.dtype = dtype
    config.save_pretrained(output)


def trunk_config(directory: Path) -> PretrainedConfig:
    """The configuration of a QNet checkpoint's trunk."""
    fields: dict[str, Any] = json.loads((directory / CONFIG).read_text())["trunk"]
    return nested_config(fields, "trunk")
