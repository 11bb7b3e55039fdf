"""Causal LMs from Hugging Face folders; of a model that reads images too, its text model.

The configuration of such a checkpoint holds one for text beside others: Gemma 3 and 4, Llama 4,
Mistral 3, Qwen 3.5. transformers takes the text model out of some of them by itself. Others are
loaded whole, and the text model and the output layer are kept.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    PretrainedConfig,
    PreTrainedModel,
)

from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.hub import model_folder

_FLOAT32: Any = {"dtype": torch.float32, "local_files_only": True, "use_safetensors": True, "trust_remote_code": False}


def read_text_config(model: str) -> PretrainedConfig:
    """The configuration of a model's text, by its folder or its name on the hub, without weights."""
    name, _, revision = (model, "", "") if Path(model).exists() else model.partition("@")
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(name, revision=revision or None, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{model} has no configuration here ({error}); name a folder with config.json, or a "
            "model of the hub where that can be reached"
        ) from error
    return _text_config(config) or config


def load_causal_lm(folder: Path, *, empty: bool = False) -> PreTrainedModel:
    """The causal LM of a folder, in float32; an `empty` one is `without_weights`."""
    if empty:
        return without_weights(model_folder(folder), AutoModelForCausalLM)
    model: PreTrainedModel = CausalLM.from_pretrained(model_folder(folder), **_FLOAT32)
    return model


def without_weights(folder: Path, auto_class: Any) -> PreTrainedModel:
    """The model of a folder, by this class of transformers, in float32; weights take memory when they are written."""
    with torch.device("meta"):
        model: PreTrainedModel = auto_class.from_config(read_text_config(str(folder)), dtype=torch.float32)
    model.to_empty(device="cpu")
    model.tie_weights()
    for weight in model.parameters():
        weight._is_hf_initialized = True  # type: ignore[attr-defined]
    model.initialize_weights()  # what is stored nowhere, such as the angles of positions
    return model


def load_trunk(folder: Path, *, empty: bool = False) -> PreTrainedModel:
    """The causal LM of a folder without its output layer, in float32; an `empty` one is `without_weights`."""
    folder = model_folder(folder)
    if empty:
        return without_weights(folder, AutoModel)
    text = _text_config(_read_config(folder))
    if text is None:
        trunk: PreTrainedModel = AutoModel.from_pretrained(folder, **_FLOAT32)
        return trunk
    # Not `base_model`, which is the whole where a class names its trunk otherwise than it says.
    trunk_class: Any = AutoModel._model_mapping[type(text)]
    parts = load_causal_lm(folder).modules()
    found: PreTrainedModel = next(part for part in parts if isinstance(part, trunk_class))
    return found


def text_trunk(trunk: PreTrainedModel) -> PreTrainedModel:
    """The trunk itself, or the text model in it."""
    if _text_config(trunk.config) is None:
        return trunk
    text: PreTrainedModel = trunk.get_decoder()
    return text


class CausalLM:
    """transformers' `AutoModelForCausalLM` for models of text and those that read more."""

    @staticmethod
    def from_pretrained(folder: Path, **options: Any) -> Any:
        """The model, or with `output_loading_info` a pair of the model and transformers' report."""
        config = _read_config(folder)
        text = _text_config(config)
        if text is None or _loads_as_text(config):
            return AutoModelForCausalLM.from_pretrained(folder, **options)
        if type(text) not in AutoModelForCausalLM._model_mapping:
            raise CheckpointError(
                f"{folder}: {config.model_type} reads more than text, and transformers has no "
                f"class for its text model, {text.model_type}; serve it with vLLM and name it as "
                "an upstream, or take another model"
            )
        loaded = AutoModelForMultimodalLM.from_pretrained(folder, **options)
        if isinstance(loaded, tuple):
            return _text_model(loaded[0], text), loaded[1]
        return _text_model(loaded, text)


def _read_config(folder: Path) -> PretrainedConfig:
    config: PretrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return config


def _text_config(config: PretrainedConfig) -> PretrainedConfig | None:
    """The text model's part of a configuration; None if there is nothing else."""
    text: PretrainedConfig = config.get_text_config(decoder=True)
    return None if text is config else text


def _loads_as_text(config: PretrainedConfig) -> bool:
    """True if transformers takes the text model out of the checkpoint."""
    mapping: Any = AutoModelForCausalLM._model_mapping
    if type(config) not in mapping:
        return False
    return mapping[type(config)].config_class is config.sub_configs.get("text_config")


def _text_model(whole: PreTrainedModel, config: PretrainedConfig) -> PreTrainedModel:
    """A causal LM that has the text model and the output layer of a larger model."""
    config.tie_word_embeddings = whole.config.tie_word_embeddings
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    setattr(model, model.base_model_prefix, whole.get_decoder())
    model.set_output_embeddings(whole.get_output_embeddings())
    model.generation_config = whole.generation_config
    return model
