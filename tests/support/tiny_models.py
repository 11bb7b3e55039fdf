"""Random models of a few thousand parameters, made in memory."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import (
    GPT2Config,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    PhiConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.auto import AutoModelForCausalLM, AutoModelForSequenceClassification

from qguide.qnet.features.hashing import Hasher
from qguide.qnet.models.checkpoint import LoadedPolicy, LoadedQNet, save_checkpoint
from qguide.qnet.models.feature_q import feature_q_of, save_feature_q
from qguide.qnet.models.implicit_q import ImplicitQ
from qguide.qnet.models.manifest import Manifest, ReadAt
from qguide.qnet.models.options import HeadFeatures, HeadKind
from qguide.qnet.models.qnet import QNet
from qguide.qnet.models.qnet_config import QNetConfig
from qguide.qnet.rendering.renderer import Renderer
from qguide.qnet.types import Message
from qguide.training.licence.domain import fit_domain
from qguide.training.small_models import train_tokenizer

WORDS = ("go", "to", "desk", "take", "mug", "from", "shelf", "open", "Action", ":", "you", "see")
ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral", "phi", "gpt2")
CONTEXT = 256


@functools.cache
def renderer() -> Renderer:
    """A renderer whose tokenizer knows the words above."""
    return Renderer(train_tokenizer([" ".join(WORDS)] * 5, vocab_size=320))


def distinct_tokens(candidates: Sequence[Message]) -> int:
    """Number of distinct prefixes of the candidates."""
    return distinct_beginnings([renderer().encode_candidate(c) for c in candidates])


def distinct_beginnings(paths: Sequence[Sequence[int]]) -> int:
    """Number of distinct prefixes of these tokens."""
    return len({tuple(ids[:end]) for ids in paths for end in range(1, len(ids) + 1)})


def config_of(architecture: str, *, context: int = CONTEXT, **more: Any) -> PretrainedConfig:
    """Two layers, four heads, two key/value heads where the architecture has them."""
    vocab_size = len(renderer().tokenizer)
    if architecture == "gpt2":
        return GPT2Config(
            vocab_size=vocab_size, n_embd=32, n_layer=2, n_head=4, n_positions=context, bos_token_id=0, eos_token_id=0
        )
    kinds = {
        "llama": LlamaConfig,
        "qwen2": Qwen2Config,
        "qwen3": Qwen3Config,
        "mistral": MistralConfig,
        "phi": PhiConfig,
        "lfm2": Lfm2Config,
    }
    shape: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": context,
    }
    if architecture == "lfm2":  # a hybrid
        shape["layer_types"] = ["conv", "full_attention"]
    config: PretrainedConfig = kinds[architecture](**(shape | more))
    return config


def policy_model(architecture: str = "llama", **more: Any) -> LoadedPolicy:
    """A random causal LM."""
    model = AutoModelForCausalLM.from_config(config_of(architecture, **more))
    return LoadedPolicy("tiny-policy", _lively(model), renderer(), None)


def q_model(
    architecture: str = "llama", *, head_features: HeadFeatures = "none", reads_observation: bool = False, **more: Any
) -> LoadedQNet:
    """A random QNet."""
    trunk = config_of(architecture, **more).to_dict()
    qnet = QNet(QNetConfig(trunk=trunk, head_width=16, head_features=head_features))
    read_at: ReadAt = "observation" if reads_observation else "last_token"
    manifest = Manifest(kind="qnet", name="tiny-q", read_at=read_at)
    return LoadedQNet("tiny-q", _lively(qnet), renderer(), manifest)


def save_policy(
    folder: Path,
    architecture: str | PretrainedConfig = "llama",
    *,
    seed: int = 0,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Path:
    """A random causal LM as any Hugging Face folder: weights, configuration, tokenizer."""
    tokenizer = tokenizer or renderer().tokenizer
    config = config_of(architecture) if isinstance(architecture, str) else architecture
    config.vocab_size = len(tokenizer)
    model = AutoModelForCausalLM.from_config(config)
    _lively(model, seed=seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_qnet(
    folder: Path,
    trunk: Path,
    *,
    head: HeadKind = "mlp",
    head_features: HeadFeatures = "none",
    head_bins: int = 0,
    reads_observation: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Path:
    """A random head on the trunk of a Hugging Face folder, as a checkpoint."""
    read_at: ReadAt = "observation" if reads_observation else "last_token"
    qnet = QNet.from_trunk(trunk, head=head, head_width=16, head_features=head_features, head_bins=head_bins)
    _lively(qnet.head)
    manifest = Manifest(kind="qnet", name="tiny-q", read_at=read_at)
    tokenizer = tokenizer or renderer().tokenizer
    save_checkpoint(folder, model=qnet, tokenizer=tokenizer, manifest=manifest)
    return folder


def save_classifier(
    folder: Path,
    architecture: str = "llama",
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    labels: int = 1,
    pad_token_id: int | None = None,
    **more: Any,
) -> Path:
    """A random sequence classifier as any Hugging Face folder."""
    tokenizer = tokenizer or renderer().tokenizer
    config = config_of(architecture, **more)
    config.vocab_size = len(tokenizer) + 1  # transformers adds a token to a Qwen tokenizer's
    config.num_labels = labels
    config.pad_token_id = pad_token_id
    model = AutoModelForSequenceClassification.from_config(config)
    _lively(model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_implicit_q(folder: Path, policy: Path, reference: Path, *, beta: float = 0.1) -> Path:
    """Two Hugging Face folders as one checkpoint."""
    model = ImplicitQ.from_policies(policy, reference, beta=beta)
    manifest = Manifest(kind="implicit-q", name="tiny-implicit", read_at="action_tokens")
    save_checkpoint(folder, model=model, tokenizer=renderer().tokenizer, manifest=manifest)
    return folder


def _lively(model: Any, *, seed: int = 0) -> Any:
    """Weights large enough that every token matters to the output."""
    generator = torch.Generator().manual_seed(seed)
    assert isinstance(model, nn.Module)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 or name.endswith("bias"):
                parameter.normal_(0.0, 0.15, generator=generator)
    return model.eval()


def save_features(folder: Path, *, seed: int = 0) -> Path:
    """Write a Q model without a network, of random weights."""
    hasher = Hasher(b"salt", bits=10)
    weights = np.random.default_rng(seed).normal(size=(2, 1 << hasher.bits)).astype(np.float32)
    manifest = Manifest(kind="features", name="tiny-features", target="td-advantage")
    domain = fit_domain([("", (Message("user", " ".join(WORDS)),))])
    save_feature_q(folder, feature_q_of(*weights, mean=0.5, hasher=hasher), manifest, domain=domain)
    return folder
