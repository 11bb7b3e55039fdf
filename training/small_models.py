"""Small Llama for training from scratch, and its tokenizer.

An agent mostly copies: it finds the object that it needs in the last observation and repeats the
object's name. Learning this by gradient descent alone takes a transformer too long on a CPU. Three
initialisations give it a head start:

- The vector of a numbered name that is one token, such as " cabinet 13", starts as the sum of its
  word's and its number's vectors, so that names of one kind are close together from the start.
- Some heads start by attending to tokens equal to their own and copying them: W_Q = W_K and
  W_O = W_V^T with orthogonal rows (after Trockman and Kolter's mimetic initialization, 2023).
- Some heads start as induction heads (Olsson et al., 2022), see
  `initialise_induction`: a name of many tokens, such as a product's number, is
  copied on from where it was begun.

The tokenizer is a byte-level BPE, so it can encode any text, and every word of an environment with
a closed vocabulary becomes one token.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaAttention

from qguide.training.architecture import OFFSETS, Architecture

END = "<|end|>"
ROLES = ("system", "user", "assistant", "tool")
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
WORD_PATTERN = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]|\s"
"""Words, numbers, single marks and single spaces: "Thought:" is the same two tokens everywhere."""

_NUMBERED_PATTERN = r" \p{L}+ \p{N}+|"
"""A word with its number, such as " cabinet 13", tried before either alone."""


def train_tokenizer(
    texts: Iterable[str], *, vocab_size: int, phrases: Sequence[str] = (), numbered_words: bool = False
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on `texts`, with one token per role and one for the end of a turn.

    Args:
        phrases: phrases of the environment, such as ", a" or "You arrive at loc". Each may become
            one token where it ends at the end of a word, which leaves fewer tokens to train on,
            sample and score.
        numbered_words: a word and the number after it may become one token, so that a name such as
            "cabinet 13" is copied as a whole.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _pre_tokenizer(phrases, numbered_words=numbered_words)
    tokenizer.decoder = decoders.ByteLevel()
    special = [END, *(f"<|{role}|>" for role in ROLES)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, additional_special_tokens=special[1:]
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _pre_tokenizer(phrases: Sequence[str], *, numbered_words: bool) -> pre_tokenizers.PreTokenizer:
    """The split of a text into phrases, names and words, within which tokens are merged."""
    longest_first = sorted(phrases, key=len, reverse=True)
    fixed = "".join(re.escape(phrase) + r"(?!\p{L})|" for phrase in longest_first)
    names = _NUMBERED_PATTERN if numbered_words else ""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(fixed + names + WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_QUICK: Final = 4
"""Number of rotary frequencies that tell neighbouring tokens apart."""

_FARTHEST: Final = 500
"""Tokens over which a match is found: the slow frequencies turn by less than 1 radian."""

_SHARPNESS: Final = 12.0
"""Attention logit that each quick frequency adds at the offset; it adds less elsewhere."""

_WRITTEN: Final = 0.3
"""Scale of a token that is written behind another; it is about as long as an embedding then."""

_OWN: Final = 2.4
"""Scale of a query's own token, which makes it as long as the written ones."""

_AGREEMENT: Final = 2.0
"""Scale of an induction head's queries and keys."""

_COPIED: Final = 2.0
"""Scale of what an induction head copies: more than all else in the residual stream."""


@torch.no_grad()
def initialise_induction(model: LlamaForCausalLM, *, after: int, heads: int) -> None:
    """Set the embeddings' common direction, three heads of the first layer and the induction heads.

    Args:
        after: the second layer's heads before the induction heads, which are left as they are.
    """
    embedding_VD = model.model.embed_tokens.weight
    size = embedding_VD.shape[1]
    # Radians per token of each pair of a head's dimensions, the quickest first.
    frequency_F = model.model.rotary_emb.inv_freq
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    basis_DD = nn.init.orthogonal_(torch.empty(size, size))
    common_D, own_ED = basis_DD[0], basis_DD[1 : 1 + first.head_dim]
    # Each offset has a subspace; the last ones of a small model share dimensions with others.
    before_ED = [basis_DD.roll(-1 - n * first.head_dim, 0)[: first.head_dim] for n in OFFSETS]
    embedding_VD /= embedding_VD.norm(dim=1).mean()
    embedding_VD += common_D
    for head, offset in enumerate(OFFSETS):
        rows = _rows(first, head)
        _look_back(first, rows, common_D, frequency_F * offset)
        _copy(first, rows, own_ED, before_ED[head], scale=_WRITTEN)
    for head in range(after, after + heads):
        rows = _rows(second, head)
        _match(second, rows, [own_ED * _OWN, *before_ED], frequency_F * _FARTHEST < 1)
        _copy(second, rows, own_ED, own_ED, scale=_COPIED)


def _look_back(attention: LlamaAttention, rows: slice, common_D: Tensor, angle_F: Tensor) -> None:
    """Make a head attend to the token that is these angles before, whatever the tokens are."""
    quick_F = (torch.arange(len(angle_F)) < _QUICK).float()
    # The common direction is half of an embedding's square, so an input of length sqrt(D) has
    # sqrt(D / 2) of it in every query and key.
    reach = (_SHARPNESS * 2 / common_D.shape[0] * attention.head_dim**0.5) ** 0.5
    query_E = torch.cat([quick_F, torch.zeros_like(quick_F)])
    key_E = torch.cat([quick_F * angle_F.cos(), quick_F * angle_F.sin()])
    attention.q_proj.weight[rows] = torch.outer(query_E, common_D) * reach
    attention.k_proj.weight[rows] = torch.outer(key_E, common_D) * reach


def _match(attention: LlamaAttention, rows: slice, spaces: Sequence[Tensor], slow_F: Tensor) -> None:
    """Make a head attend to what followed the query's last tokens.

    Args:
        spaces: (E, D) subspaces in which a token has itself and the tokens before it, in order.
    """
    slow_E = slow_F.repeat(2)
    query_ED, key_ED = attention.q_proj.weight[rows], attention.k_proj.weight[rows]
    query_ED.zero_()
    key_ED.zero_()
    for newer_ED, older_ED in pairwise(spaces):
        mixed_EE = nn.init.orthogonal_(torch.empty(len(slow_E), len(slow_E)))[: int(slow_E.sum())]
        query_ED[slow_E] += _AGREEMENT * mixed_EE @ newer_ED
        key_ED[slow_E] += _AGREEMENT * mixed_EE @ older_ED


def _copy(attention: LlamaAttention, rows: slice, read_ED: Tensor, written_ED: Tensor, *, scale: float) -> None:
    attention.v_proj.weight[rows] = read_ED * scale**0.5
    attention.o_proj.weight[:, rows] = written_ED.T * scale**0.5


def _rows(attention: LlamaAttention, head: int) -> slice:
    return slice(attention.head_dim * head, attention.head_dim * (head + 1))


COPIED = 0.2
"""Scale of a copying head's W_V and W_O, small compared to the residual stream to which it adds."""


_NUMBERED_WORD = re.compile(r"( [^\W\d_]+)( \d+)")


def build_llama(shape: Architecture, tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """Build a model with new weights, drawn from torch's generator."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.context,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        compose_numbered_words(model.model.embed_tokens.weight, tokenizer)
        for layer in model.model.layers:
            initialise_copy_heads(layer.self_attn, heads=shape.copy_heads)
        if shape.induction_heads:
            initialise_induction(model, after=shape.copy_heads, heads=shape.induction_heads)
    return model


def compose_numbered_words(embedding_VD: Tensor, tokenizer: PreTrainedTokenizerBase) -> None:
    """Set the vector of each token like " word 7" to the sum of those of " word" and " 7"."""
    for token_id in range(len(tokenizer)):
        name = _NUMBERED_WORD.fullmatch(str(tokenizer.decode([token_id])))
        if name:
            word_D, number_D = (_pieces(embedding_VD, tokenizer, part) for part in name.groups())
            embedding_VD[token_id] = word_D + number_D


def _pieces(embedding_VD: Tensor, tokenizer: PreTrainedTokenizerBase, text: str) -> Tensor:
    """The sum of a text's token vectors, scaled to about the length of one."""
    pieces: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    vector_D: Tensor = embedding_VD[pieces].sum(0) / len(pieces) ** 0.5
    return vector_D


def initialise_copy_heads(attention: LlamaAttention, *, heads: int) -> None:
    """Make the first heads of a layer attend to tokens equal to their own and copy them."""
    for head in range(heads):
        rows = slice(attention.head_dim * head, attention.head_dim * (head + 1))
        same = nn.init.orthogonal_(torch.empty_like(attention.q_proj.weight[rows]))
        attention.q_proj.weight[rows] = same
        attention.k_proj.weight[rows] = same
        copied = nn.init.orthogonal_(torch.empty_like(attention.v_proj.weight[rows]), gain=COPIED)
        attention.v_proj.weight[rows] = copied
        attention.o_proj.weight[:, rows] = copied.T
