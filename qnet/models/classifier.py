"""Hugging Face sequence classifiers with one label as Q models: the logit is Q.

A reward model is one, and so is what `qguide export-model` writes of a linear head. Those of others read whole
conversations as their chat template prints them; an exported one reads what it was trained on.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from transformers import AutoConfig, PretrainedConfig

from qguide.qnet.engine.context_length import context_length
from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.hub import model_folder, short_name
from qguide.qnet.models.loading import broken_refused, load_fitting_renderer
from qguide.qnet.models.manifest import (
    LOADABLE,
    MANIFEST,
    Manifest,
    read_manifest,
    require_read_at,
    require_renderer,
    sha256_of,
)
from qguide.qnet.rendering.renderer import Renderer

CLASSIFIER: Final = "ForSequenceClassification"
"""End of the names of transformers' classes."""
EXPORTED: Final = "qguide"
"""Field of an exported classifier's configuration, with the manifest's fields below."""
EXPORTED_FIELDS: Final = {"renderer_version", "read_at", "prior", "licence", "unjudged"}


@dataclass(frozen=True, slots=True)
class WholeConversations:
    """Tokens of a classifier of others: conversations as its chat template prints them.

    Attributes:
        pad_token_id: the classifier reads at the last token that is not this one.
    """

    pad_token_id: int | None


def is_classifier(directory: Path) -> bool:
    """True if the configuration in a folder is a sequence classifier's."""
    try:
        fields = json.loads((directory / "config.json").read_bytes())
        return any(str(name).endswith(CLASSIFIER) for name in fields["architectures"])
    except (ValueError, TypeError, KeyError):
        return False


def require_one_label(directory: Path, config: PretrainedConfig) -> None:
    """Refuse a classifier of several classes."""
    if config.num_labels != 1:
        labels = ", ".join(map(str, list((config.id2label or {}).values())[:5]))
        raise CheckpointError(
            f"{directory} has {config.num_labels} labels ({labels}), and none of them is Q; name a "
            "classifier with one label, such as a reward model (num_labels = 1)"
        )


def classifier_manifest(directory: Path, config: PretrainedConfig, *, name: str = "", omit: str = "") -> Manifest:
    """The manifest that a classifier's folder does not have, with hashes of all files but those with suffix `omit`."""
    read = (path for path in directory.iterdir() if path.is_file() and path.suffix in LOADABLE - {omit})
    files = {path.name: sha256_of(path) for path in sorted(read)}
    try:
        mark: dict[str, Any] = {"read_at": "last_token"} | (getattr(config, EXPORTED, None) or {})
        manifest = Manifest(kind="qnet", name=name or short_name(directory), files=files, **mark)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{directory}/config.json: the field {EXPORTED} is not what this version of "
            "qguide export-model writes; export it again"
        ) from error
    require_read_at(directory, manifest)
    require_renderer(directory, manifest)
    return manifest


def conversations_of(config: PretrainedConfig) -> WholeConversations | None:
    """The way a classifier reads a conversation; None if it is an exported Q model."""
    if getattr(config, EXPORTED, None):
        return None
    return WholeConversations(config.get_text_config().pad_token_id)


WEIGHTS = ".safetensors"


@dataclass(frozen=True, slots=True)
class RemoteClassifier:
    """A classifier without its weights.

    Attributes:
        is_regression: the configuration says that the label is no class, so a server gives logits
            with and without activation.
    """

    name: str
    vocab_size: int
    context: int
    renderer: Renderer
    manifest: Manifest
    conversations: WholeConversations | None
    is_regression: bool


def load_remote_classifier(directory: Path, *, name: str) -> RemoteClassifier:
    """The tokenizer and configuration of a classifier's folder, which need not hold its weights."""
    directory = model_folder(directory)
    if read_manifest(directory) is not None:
        raise CheckpointError(
            f"{directory} has a {MANIFEST}, so it is a checkpoint of QGuide, which no other server "
            "runs; name the folder that qguide export-model wrote of it"
        )
    with broken_refused(str(directory)):
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    if is_classifier(directory):  # a server may make one of another model
        require_one_label(directory, config)
    text = config.get_text_config()
    found = classifier_manifest(directory, config, name=name, omit=WEIGHTS)
    renderer = load_fitting_renderer(directory, int(text.vocab_size), found)
    return RemoteClassifier(
        name,
        int(text.vocab_size),
        context_length(text),
        renderer,
        found,
        conversations_of(config),
        is_regression=config.problem_type == "regression",
    )
