"""The contract between training and the server: weights, tokenizer and a manifest.

A checkpoint is a directory with `model.safetensors`, `config.json`, the tokenizer and
`manifest.json`. Loading refuses weights that do not fit or are not finite. No pickle, no remote
code. A policy may also be any Hugging Face causal LM folder without a manifest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from qguide.qnet.errors import CheckpointError
from qguide.qnet.features.domain import Domain
from qguide.qnet.models.classifier import (
    WholeConversations,
    classifier_manifest,
    conversations_of,
    is_classifier,
    require_one_label,
)
from qguide.qnet.models.ensemble import member_folders, scales_of
from qguide.qnet.models.feature_q import FeatureQ, load_feature_q
from qguide.qnet.models.hub import model_folder, short_name
from qguide.qnet.models.implicit_q import ImplicitQ
from qguide.qnet.models.loading import broken_refused, load_fitting_renderer, require_fit
from qguide.qnet.models.manifest import (
    MANIFEST,
    Kind,
    Manifest,
    is_feature_q,
    read_manifest,
    require_read_at,
    write_manifest,
)
from qguide.qnet.models.qnet import QNet, qnet_of
from qguide.qnet.models.text_model import CausalLM
from qguide.qnet.rendering.renderer import Renderer


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
    conversations: WholeConversations | None = None


@dataclass(frozen=True, slots=True)
class LoadedImplicitQ:
    """A step-level DPO policy and its reference, ready to score with."""

    name: str
    model: ImplicitQ
    renderer: Renderer
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class LoadedFeatureQ:
    """A Q model without a network, ready to score with as a member of an ensemble."""

    name: str
    model: FeatureQ
    manifest: Manifest


LoadedMember = LoadedQNet | LoadedImplicitQ | LoadedFeatureQ


@dataclass(frozen=True, slots=True)
class LoadedEnsemble:
    """Q models ready to score with the mean of their values, each times its scale."""

    name: str
    members: tuple[LoadedMember, ...]
    scales: tuple[float, ...]
    manifest: Manifest

    @property
    def model(self) -> nn.ModuleList:
        """The weights of all members with a network."""
        return nn.ModuleList(member.model for member in self._networks)

    @property
    def renderer(self) -> Renderer | None:
        """The first network's, if there is one; each member reads with its own."""
        return self._networks[0].renderer if self._networks else None

    @property
    def _networks(self) -> list[LoadedQNet | LoadedImplicitQ]:
        return [member for member in self.members if not isinstance(member, LoadedFeatureQ)]


LoadedQModel = LoadedQNet | LoadedImplicitQ | LoadedEnsemble


def save_checkpoint(
    directory: Path,
    *,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    manifest: Manifest,
    domain: Domain | None = None,
) -> Manifest:
    """Write weights, tokenizer, domain and manifest; the manifest gets the files' hashes."""
    directory.mkdir(parents=True, exist_ok=True)
    if domain is not None:
        domain.save(directory)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    manifest = manifest.model_copy(update={"thinking": Renderer(tokenizer).traits.thinking})
    return write_manifest(directory, manifest, packages=("torch", "transformers"))


def load_policy(directory: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> LoadedPolicy:
    """A causal LM and its renderer; a `CheckpointError` for weights that do not fit or are not finite."""
    directory = model_folder(directory)
    manifest = read_manifest(directory)
    _expect_kind(directory, manifest, "policy")
    model = _load_model(CausalLM, directory, dtype)
    name = manifest.name if manifest else short_name(directory)
    renderer = load_fitting_renderer(directory, int(model.config.vocab_size), manifest)
    return LoadedPolicy(name, model.to(device).eval(), renderer, manifest)


def load_qnet(directory: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> LoadedQNet:
    """A QNet and its renderer."""
    loaded = load_q_model(directory, dtype=dtype, device=device, kinds=("qnet",))
    assert isinstance(loaded, LoadedQNet)
    return loaded


def load_q_model(
    directory: Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    kinds: Sequence[Kind] = ("qnet", "implicit-q", "ensemble"),
) -> LoadedQModel:
    """A Q model of the kind that its manifest names, or a sequence classifier with one label, and its renderer."""
    directory = model_folder(directory)
    manifest = read_manifest(directory)
    if manifest is None:
        return _load_classifier(directory, dtype, device)
    _expect_kind(directory, manifest, *kinds)
    require_read_at(directory, manifest)
    if manifest.kind == "ensemble":
        members = tuple(_load_member(folder, dtype, device) for folder in member_folders(directory))
        return LoadedEnsemble(manifest.name, members, scales_of(directory, len(members)), manifest)
    if manifest.kind == "qnet":
        qnet = _load_model(QNet, directory, dtype, allow_unused=False).to(device).eval()
        renderer = load_fitting_renderer(directory, int(qnet.trunk.config.vocab_size), manifest)
        return LoadedQNet(manifest.name, qnet, renderer, manifest)
    implicit = _load_model(ImplicitQ, directory, dtype, allow_unused=False).to(device).eval()
    renderer = load_fitting_renderer(directory, int(implicit.policy.config.vocab_size), manifest)
    return LoadedImplicitQ(manifest.name, implicit, renderer, manifest)


def _load_classifier(directory: Path, dtype: torch.dtype, device: str) -> LoadedQNet:
    if not is_classifier(directory):
        raise CheckpointError(
            f"{directory} has no {MANIFEST} and is no sequence classifier; a Q model is one or the "
            "other: train it again, or name a classifier with one label"
        )
    with broken_refused(str(directory)):
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    require_one_label(directory, config)
    classifier = _load_model(AutoModelForSequenceClassification, directory, dtype)
    qnet = qnet_of(directory, classifier).eval()
    nn.Module.to(qnet, device)
    manifest = classifier_manifest(directory, config)
    renderer = load_fitting_renderer(directory, int(qnet.trunk.config.vocab_size), manifest)
    return LoadedQNet(manifest.name, qnet, renderer, manifest, conversations_of(config))


def _load_member(directory: Path, dtype: torch.dtype, device: str) -> LoadedMember:
    if is_feature_q(directory):
        model, manifest = load_feature_q(directory)
        return LoadedFeatureQ(manifest.name, model, manifest)
    loaded = load_q_model(directory, dtype=dtype, device=device, kinds=("qnet", "implicit-q"))
    assert not isinstance(loaded, LoadedEnsemble)
    return loaded


def require_finite(where: Path, name: str, weight: Tensor) -> None:
    """Refuse a weight that makes every Q no number."""
    if not torch.isfinite(weight).all():
        raise CheckpointError(f"{where}: {name} holds values that are not finite; train it again")


def _load_model(model_class: Any, directory: Path, dtype: torch.dtype, *, allow_unused: bool = True) -> Any:
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


def _expect_kind(directory: Path, manifest: Manifest | None, *kinds: Kind) -> None:
    if manifest is not None and manifest.kind not in kinds:
        raise CheckpointError(f"{directory} is of kind {manifest.kind}, not {' or '.join(kinds)}")
