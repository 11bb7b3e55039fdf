"""Llama-shaped Q models with random weights, and a tokenizer whose words are token ids.

The weights are large enough that every token affects Q. With the usual initial standard deviation
of 0.02 attention is nearly uniform, and a faulty attention mask would hardly be noticed.
"""

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import LlamaConfig, PretrainedConfig, PreTrainedTokenizerFast

from qguide.qnet.models.checkpoint import LoadedQNet
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.models.options import PAPER_HEAD_WIDTH
from qguide.qnet.models.qnet import QNet
from qguide.qnet.models.qnet_config import QNetConfig
from qguide.qnet.rendering.renderer import Renderer

END = "<end>"
CONTEXT = 16_384
_TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama trunk and its value head.

    Attributes:
        ffn: width of the gated MLP.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    head_width: int = PAPER_HEAD_WIDTH

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads


SHAPES = {
    "tiny": Shape(32, 2, 4, 2, 48, 128, head_width=16),
    "2m": Shape(192, 4, 6, 6, 512, 1339, head_width=256),  # the embedded Q model's
    "28m": Shape(512, 8, 8, 2, 1408, 8192),
    "125m": Shape(768, 12, 12, 4, 2816, 32_000),
    "1b": Shape(2048, 16, 32, 8, 8192, 128_256),
    "7b": Shape(4096, 32, 32, 8, 14_336, 32_000),
}


def llama_config(shape: Shape) -> LlamaConfig:
    """The configuration of a trunk of this shape."""
    return LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=CONTEXT,
    )


def build_qnet(
    name: str, shape: Shape, *, seed: int, dtype: torch.dtype, device: str, trunk: PretrainedConfig | None = None
) -> LoadedQNet:
    """Build a QNet of this shape with random weights.

    Args:
        trunk: in place of a Llama trunk; its recurrent layers keep their initial weights.
    """
    torch.manual_seed(seed)  # for layers that draw their own
    trunk = trunk or llama_config(shape)
    with torch.device(device):
        model = QNet(QNetConfig(trunk=trunk.to_dict(), head_width=shape.head_width))
    # Rotary angles stay in float32, as in a model loaded from a checkpoint.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    _draw_weights(model, torch.Generator(device).manual_seed(seed))
    manifest = Manifest(kind="qnet", name=name, read_at="last_token")
    return LoadedQNet(name, model.eval(), Renderer(_tokenizer(shape.vocabulary)), manifest)


def spell_sequence(token_ids: list[int]) -> str:
    """Text of these tokens including ends of turns, for servers without a chat template."""
    return " ".join(str(token) if token else END for token in token_ids)


def spell(token_ids: list[int]) -> str:
    """Text that the tokenizer converts to these tokens."""
    return " ".join(map(str, token_ids))


@torch.no_grad()
def _draw_weights(model: nn.Module, generator: torch.Generator) -> None:
    """Draw embeddings of unit variance, matrices that preserve it, and noticeable biases."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.weight.normal_(0.0, 1.0, generator=generator)
        elif isinstance(module, nn.Linear):
            module.weight.normal_(0.0, module.in_features**-0.5, generator=generator)
            if module.bias is not None:
                module.bias.normal_(0.0, 0.1, generator=generator)


def _tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Tokenizer in which token 0 ends a turn and every other token is its number in digits."""
    words = {END: 0} | {str(token): token for token in range(1, vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=END))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.chat_template = _TEMPLATE
    return fast
