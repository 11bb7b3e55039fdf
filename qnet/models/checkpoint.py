"""The contract between training and the server: weights, tokenizer and a manifest.

A checkpoint is a directory with `model.safetensors`, `config.json`, the tokenizer and
`manifest.json`. Loading checks every file against its sha256 and refuses what does not match,
saying what and why. No pickle, no remote code. A policy may also be any Hugging Face causal LM
folder without a manifest.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from qnet.errors import CheckpointError, QGuideError
from qnet.models.hub import model_folder, short_name
from qnet.models.implicit_q import ImplicitQ
from qnet.models.qnet import QNet
from qnet.rendering.renderer import FIRST_RENDERER_VERSION, RENDERER_VERSION, Renderer
from qnet.types import TaskMarker

MANIFEST = "manifest.json"
Kind = Literal["policy", "qnet", "implicit-q"]
ReadAt = Literal["", "last_token", "observation", "action_tokens"]
_READ_AT: dict[Kind, tuple[ReadAt, ...]] = {
    "policy": ("",),
    "qnet": ("last_token", "observation"),
    "implicit-q": ("action_tokens",),
}
_LOADABLE = {".json", ".safetensors", ".jinja", ".model", ".txt"}
"""Suffixes of the files that loading may read: each has to have its hash in the manifest."""


class Manifest(BaseModel):
    """Manifest of a checkpoint.

    Attributes:
        name: the name it is served under.
        thinking: whether thoughts stay in the actions of a history, as the chat template has it;
            empty in checkpoints of the first renderer.
        read_at: where Q is read. A QNet's at the action's last token, or after the observation that
            followed the action, where the next reply would begin; an implicit Q's at all tokens of
            the action; a policy leaves it empty.
        task_markers: how the environment's first user message states the task; a policy's.
        target: what Q was regressed on: q, avg or reward.
        label_range: lowest and highest label seen in training.
        trunk: hub name and commit of the model that training started from; empty for a folder.
        trunk_sha256: hash of the weights that the trunk started from.
        data_sha256: hash of the training rows.
        metrics: what training measured.
        versions: of the packages that wrote it.
        files: sha256 of each file in the directory.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: Literal[1] = 1
    kind: Kind
    name: str
    renderer_version: str = RENDERER_VERSION
    environment: str = ""
    thinking: Literal["", "kept", "dropped"] = ""
    task_markers: tuple[TaskMarker, ...] = ()
    read_at: ReadAt = ""
    target: str = ""
    label_range: tuple[float, float] | None = None
    trunk: str = ""
    trunk_sha256: str = ""
    data_sha256: str = ""
    metrics: dict[str, float] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)

    @property
    def reads_observation(self) -> bool:
        """True if Q is read after the observation that followed the action."""
        return self.read_at == "observation"


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy ready to sample from; the manifest is None for a plain Hugging Face folder."""

    name: str
    model: PreTrainedModel
    renderer: Renderer
    manifest: Manifest | None


@dataclass(frozen=True, slots=True)
class LoadedQNet:
    """A Q model ready to score with."""

    name: str
    model: QNet
    renderer: Renderer
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class LoadedImplicitQ:
    """A step-level DPO policy and its reference, ready to score with."""

    name: str
    model: ImplicitQ
    renderer: Renderer
    manifest: Manifest


LoadedQModel = LoadedQNet | LoadedImplicitQ


def embedded_path(kind: Literal["policy", "qnet"]) -> Path:
    """Folder of a model that ships with QGuide."""
    return Path(str(resources.files("qnet") / "embedded" / kind))


def sha256_of(path: Path) -> str:
    """The file's sha256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_checkpoint(
    directory: Path,
    *,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    manifest: Manifest,
) -> Manifest:
    """Write weights, tokenizer and manifest; the manifest gets the files' hashes."""
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    written = sorted(p for p in directory.iterdir() if p.is_file() and p.name != MANIFEST)
    complete = manifest.model_copy(
        update={
            "files": {path.name: sha256_of(path) for path in written},
            "versions": {name: version(name) for name in ("torch", "transformers")},
            "thinking": Renderer(tokenizer).traits.thinking,
        }
    )
    text = json.dumps(complete.model_dump(mode="json"), indent=2)
    (directory / MANIFEST).write_text(text + "\n")
    return complete


def read_manifest(directory: Path) -> Manifest | None:
    """The verified manifest of a checkpoint, or None where the folder has none.

    Raises:
        CheckpointError: no such folder, a manifest that does not parse, a file that is missing,
            not in the manifest or different from its hash, or another renderer version.
    """
    if not (directory / "config.json").is_file():
        raise CheckpointError(f"{directory} holds no config.json; name a checkpoint folder")
    path = directory / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise CheckpointError(f"{path} is not a manifest this version reads: {error}") from error
    if manifest.renderer_version not in (RENDERER_VERSION, FIRST_RENDERER_VERSION):
        raise _other_renderer(directory, manifest)
    _verify_files(directory, manifest)
    return manifest


def load_policy(
    directory: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> LoadedPolicy:
    """A causal LM and its renderer.

    Raises:
        CheckpointError: see `read_manifest`; also a manifest of another kind, weights that do
            not fit the configuration or are not finite.
    """
    directory = model_folder(directory)
    manifest = read_manifest(directory)
    _expect_kind(directory, manifest, "policy")
    model = _load_model(AutoModelForCausalLM, directory, dtype)
    name = manifest.name if manifest else short_name(directory)
    renderer = load_fitting_renderer(directory, int(model.config.vocab_size), manifest)
    return LoadedPolicy(name, model.to(device).eval(), renderer, manifest)


def load_qnet(
    directory: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> LoadedQNet:
    """A QNet and its renderer.

    Raises:
        CheckpointError: see `load_policy`; a QNet without a manifest is refused.
    """
    loaded = load_q_model(directory, dtype=dtype, device=device, kinds=("qnet",))
    assert isinstance(loaded, LoadedQNet)
    return loaded


def load_q_model(
    directory: Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    kinds: Sequence[Kind] = ("qnet", "implicit-q"),
) -> LoadedQModel:
    """A Q model of the kind that its manifest names, and its renderer.

    Args:
        kinds: those that will do.

    Raises:
        CheckpointError: see `load_policy`; a Q model without a manifest is refused, and so is one
            whose Q is read elsewhere or whose file holds weights that the model lacks.
    """
    directory = model_folder(directory)
    manifest = read_manifest(directory)
    if manifest is None:
        raise CheckpointError(f"{directory} has no {MANIFEST}; a Q model needs one: train it again")
    _expect_kind(directory, manifest, *kinds)
    require_read_at(directory, manifest)
    if manifest.kind == "qnet":
        qnet = _load_model(QNet, directory, dtype, allow_unused=False).to(device).eval()
        renderer = load_fitting_renderer(directory, int(qnet.trunk.config.vocab_size), manifest)
        return LoadedQNet(manifest.name, qnet, renderer, manifest)
    implicit = _load_model(ImplicitQ, directory, dtype, allow_unused=False).to(device).eval()
    renderer = load_fitting_renderer(directory, int(implicit.policy.config.vocab_size), manifest)
    return LoadedImplicitQ(manifest.name, implicit, renderer, manifest)


def load_renderer(directory: Path) -> Renderer:
    """The renderer of a checkpoint's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(
        model_folder(directory), local_files_only=True, trust_remote_code=False
    )
    return Renderer(tokenizer)


def load_fitting_renderer(directory: Path, vocab_size: int, manifest: Manifest | None) -> Renderer:
    """The renderer of a checkpoint whose model knows so many tokens.

    Raises:
        CheckpointError: the tokenizer is broken or makes more tokens, or the manifest names a
            renderer that made other tokens.
        RenderingError: see `Renderer`.
    """
    with broken_refused(f"{directory}: the tokenizer"):
        renderer = load_renderer(directory)
    if len(renderer.tokenizer) > vocab_size:
        raise CheckpointError(
            f"{directory}: the tokenizer makes {len(renderer.tokenizer):,} different tokens; the "
            f"model knows {vocab_size:,}; save it with the tokenizer it was trained with"
        )
    if (
        manifest is not None
        and manifest.renderer_version == FIRST_RENDERER_VERSION
        and not renderer.renders_as_version_1
    ):
        raise _other_renderer(directory, manifest)
    return renderer


def require_read_at(directory: Path, manifest: Manifest) -> None:
    """Refuse a Q model that was trained to be read at other tokens than it is here.

    Raises:
        CheckpointError: it was.
    """
    known = _READ_AT[manifest.kind]
    if manifest.read_at not in known:
        raise CheckpointError(
            f"{directory}: read_at is {manifest.read_at!r}; Q of a {manifest.kind} is read at "
            f"{' or '.join(map(repr, known))}; train it again"
        )


@contextmanager
def broken_refused(what: str) -> Iterator[None]:
    """Say what it is that does not load; a broken file can fail in any way.

    Raises:
        CheckpointError: in place of any error that is not ours.
    """
    try:
        yield
    except QGuideError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(
            f"{what} does not load ({reason}); copy it again or train it again"
        ) from error


def require_fit(
    directory: Path,
    *,
    missing: Collection[str],
    mismatched: Collection[object],
    unused: Collection[str] = (),
) -> None:
    """Refuse weights of another model than config.json describes.

    Raises:
        CheckpointError: there is any such weight.
    """
    if missing or mismatched or unused:
        raise CheckpointError(
            f"{directory}: weights do not fit config.json (missing {sorted(missing)[:3]}, "
            f"mismatched {sorted(mismatched, key=str)[:3]}, unused {sorted(unused)[:3]}); "
            "copy both from the same training"
        )


def require_finite(where: Path, name: str, weight: Tensor) -> None:
    """Refuse a weight that makes every Q no number.

    Raises:
        CheckpointError: it holds NaN or an infinity.
    """
    if not torch.isfinite(weight).all():
        raise CheckpointError(f"{where}: {name} holds values that are not finite; train it again")


def _load_model(
    model_class: Any, directory: Path, dtype: torch.dtype, *, allow_unused: bool = True
) -> Any:
    with broken_refused(str(directory)):
        model, report = model_class.from_pretrained(
            directory,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
        )
    require_fit(
        directory,
        missing=report["missing_keys"],
        mismatched=report["mismatched_keys"],
        unused=() if allow_unused else report["unexpected_keys"],
    )
    for name, weight in model.state_dict().items():
        require_finite(directory, name, weight)
    return model


def _verify_files(directory: Path, manifest: Manifest) -> None:
    loadable = {
        p.relative_to(directory).as_posix() for p in directory.rglob("*") if _is_loadable(p)
    }
    if unlisted := sorted(loadable - {MANIFEST} - set(manifest.files)):
        raise CheckpointError(
            f"{directory}: {unlisted[0]} has no sha256 in {MANIFEST}; remove it or train again"
        )
    for name, expected in manifest.files.items():
        path = directory / name
        if Path(name).name != name or not path.is_file():
            raise CheckpointError(f"{directory}: {name} is in the manifest but not in the folder")
        if sha256_of(path) != expected:
            raise CheckpointError(
                f"{directory}: {name} differs from its sha256 in {MANIFEST}; copy it again"
            )


def _other_renderer(directory: Path, manifest: Manifest) -> CheckpointError:
    return CheckpointError(
        f"{directory} was trained with renderer {manifest.renderer_version}; this is renderer "
        f"{RENDERER_VERSION}, which makes other tokens; train it again"
    )


def _is_loadable(path: Path) -> bool:
    """True if loading may read it: a model file, or a link to a folder that may hold some."""
    return path.suffix in _LOADABLE or (path.is_symlink() and path.is_dir())


def _expect_kind(directory: Path, manifest: Manifest | None, *kinds: Kind) -> None:
    if manifest is not None and manifest.kind not in kinds:
        raise CheckpointError(f"{directory} is of kind {manifest.kind}, not {' or '.join(kinds)}")
