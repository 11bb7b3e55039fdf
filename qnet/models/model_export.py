"""A QNet as a folder that other programs read: vLLM, transformers, TRL.

An MLP head becomes a Sentence-Transformers folder: the trunk, the last token's hidden state, and
three dense layers, so that the "embedding" of a conversation is its Q. A linear head becomes a
sequence classifier with one label, whose logit is Q. Both are served by a stock vLLM:

    vllm serve FOLDER --runner pooling
"""

import json
from pathlib import Path
from typing import Any, Final, Literal

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoTokenizer, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from qguide.qnet.engine.context_length import context_length
from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.classifier import EXPORTED, EXPORTED_FIELDS
from qguide.qnet.models.hub import model_folder
from qguide.qnet.models.trunk_export import (
    TRUNK,
    LoadedHead,
    copy_tokenizer,
    load_head,
    new_folder,
    trunk_config,
    write_trunk,
    write_weights,
)

ExportFormat = Literal["sentence-transformers", "sequence-classification"]

_MODULES: Final = "sentence_transformers.models"
_RELU: Final = "torch.nn.modules.activation.ReLU"
_IDENTITY: Final = "torch.nn.modules.linear.Identity"


def export_model(directory: Path, output: Path) -> ExportFormat:
    """Write a QNet checkpoint in the format that its head allows, and name the format.

    The folder appears when it is complete; nothing is written of a checkpoint that `load_head` refuses.
    """
    directory = model_folder(directory)
    with new_folder(output) as partial:
        loaded = load_head(directory)
        _require_plain(loaded)
        if loaded.head.kind == "mlp":
            write_trunk(directory, loaded.manifest, partial)
            _write_modules(loaded, partial)
            return "sentence-transformers"
        _write_classifier(directory, loaded, partial)
        return "sequence-classification"


def _require_plain(loaded: LoadedHead) -> None:
    """Refuse a head that is more than layers on the hidden state."""
    head = loaded.head
    remedy = "or serve the trunk by vLLM and the head by QGuide (qguide export-trunk, QGUIDE_VLLM_TRUNKS)"
    if head.features != "none":
        raise CheckpointError(
            f"the value head of {loaded.name} reads {head.features} features, which are computed "
            "from token ids outside of the model, so no other program can give its Q; train it "
            f"with head_features = 'none', {remedy}"
        )
    if head.bins:
        raise CheckpointError(
            f"the Q of {loaded.name} is the mean of a softmax over {head.bins} bins, which dense "
            f"layers cannot compute; train it with head_bins = 0, {remedy}"
        )


def _write_modules(loaded: LoadedHead, output: Path) -> None:
    """The modules behind the trunk: pooling at the last token, then the value head's layers."""
    hidden = [layer for layer in loaded.head.hidden if isinstance(layer, nn.Linear)]
    layers = [*((layer, _RELU) for layer in hidden), (loaded.head.out, _IDENTITY)]
    width = layers[0][0].in_features
    folders = ["", "1_Pooling", *(f"{n}_Dense" for n in range(2, 2 + len(layers)))]
    kinds = ["Transformer", "Pooling", *("Dense" for _ in layers)]
    modules = [
        {"idx": i, "name": str(i), "path": folder, "type": f"{_MODULES}.{kind}"}
        for i, (folder, kind) in enumerate(zip(folders, kinds, strict=True))
    ]
    _write_json(output / "modules.json", modules)
    _write_json(output / "sentence_bert_config.json", {"max_seq_length": context_length(loaded.trunk)})
    pooling = {"word_embedding_dimension": width, "pooling_mode_lasttoken": True}
    others = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens")
    pooling |= {f"pooling_mode_{other}": False for other in others}
    _write_json(output / "1_Pooling" / "config.json", pooling)
    for folder, (layer, activation) in zip(folders[2:], layers, strict=True):
        _write_dense(output / folder, layer, activation)


def _write_dense(folder: Path, layer: nn.Linear, activation: str) -> None:
    config = {
        "in_features": layer.in_features,
        "out_features": layer.out_features,
        "bias": layer.bias is not None,
        "activation_function": activation,
    }
    _write_json(folder / "config.json", config)
    weights = {f"linear.{name}": weight.float() for name, weight in layer.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _write_classifier(directory: Path, loaded: LoadedHead, output: Path) -> None:
    config = trunk_config(directory)
    model_class = _classifier_class(config)
    prefix = f"{model_class.base_model_prefix}."
    dtype = write_weights(directory, loaded.manifest, output, {TRUNK: prefix, "head.out.": "score."})
    copy_tokenizer(directory, loaded.manifest, output)
    config.architectures = [model_class.__name__]
    config.dtype = dtype
    config.num_labels = 1
    config.problem_type = "regression"  # vLLM then answers with the logit itself
    config.pad_token_id = _padding(loaded, output)
    setattr(config, EXPORTED, loaded.manifest.model_dump(mode="json", include=EXPORTED_FIELDS))
    config.save_pretrained(output)


def _classifier_class(config: PretrainedConfig) -> Any:
    """The class of transformers that has this trunk and one linear layer without a bias."""
    known: Any = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    if type(config) in known:
        model_class = known[type(config)]
        with torch.device("meta"):
            names = model_class(config).state_dict()
        trunk = f"{model_class.base_model_prefix}."
        if [name for name in names if not name.startswith(trunk)] == ["score.weight"]:
            return model_class
    raise CheckpointError(
        f"transformers has no sequence classifier with a linear score for {config.model_type}; "
        "serve the trunk by vLLM and the head by QGuide (qguide export-trunk, QGUIDE_VLLM_TRUNKS)"
    )


def _padding(loaded: LoadedHead, output: Path) -> int | None:
    """Id of a padding token that ends no action; None where the tokenizer has no such token.

    transformers' classifiers read at the last token that is not padding. Many tokenizers pad with
    the end of turn, which is where Q is read.
    """
    tokenizer = AutoTokenizer.from_pretrained(output, local_files_only=True)
    ends = set(loaded.renderer.stop_token_ids)
    added = (int(i) for i, token in tokenizer.added_tokens_decoder.items() if token.special)
    preferred = (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id)
    usable = (i for i in (*preferred, *added) if i is not None and i not in ends)
    pad_token_id = next(usable, None)
    if pad_token_id is not None and pad_token_id != tokenizer.pad_token_id:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad_token_id)
        tokenizer.save_pretrained(output)
    return pad_token_id


def _write_json(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
