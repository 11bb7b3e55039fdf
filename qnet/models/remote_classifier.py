"""A sequence classifier whose weights run on a server: its tokenizer and configuration are here."""

from dataclasses import dataclass
from pathlib import Path

from transformers import AutoConfig

from qguide.qnet.engine.context_length import context_length
from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.classifier import (
    WholeConversations,
    classifier_manifest,
    conversations_of,
    is_classifier,
    require_one_label,
)
from qguide.qnet.models.hub import model_folder
from qguide.qnet.models.loading import broken_refused, load_fitting_renderer
from qguide.qnet.models.manifest import MANIFEST, Manifest, read_manifest
from qguide.qnet.rendering.renderer import Renderer

WEIGHTS = ".safetensors"


@dataclass(frozen=True, slots=True)
class RemoteClassifier:
    """A classifier without its weights.

    Attributes:
        name: what the server calls it.
        vocab_size: number of tokens that the model knows.
        context: most tokens that the model takes.
        manifest: with the hashes of the tokenizer's files and of the configuration.
        conversations: see `LoadedQNet`.
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
    """The tokenizer and configuration of a classifier's folder, which need not hold its weights.

    Args:
        name: what the server calls the classifier.
    """
    directory = model_folder(directory)
    if read_manifest(directory) is not None:
        raise CheckpointError(
            f"{directory} has a {MANIFEST}, so it is a checkpoint of QGuide, which no other server "
            "runs; name the folder that qguide export-model wrote of it"
        )
    with broken_refused(str(directory)):
        config = AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
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
