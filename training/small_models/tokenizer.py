"""Small tokenizer for models trained from scratch.

It is a byte-level BPE, so it can encode any text, and every word of an environment with a closed
vocabulary becomes one token.
"""

import re
from collections.abc import Iterable, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END = "<|end|>"
ROLES = ("system", "user", "assistant", "tool")
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
WORD_PATTERN = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]|\s"
"""Words, numbers, single marks and single spaces: "Thought:" is the same two tokens everywhere."""

NUMBERED_WORD = r" \p{L}+ \p{N}+|"
"""A word with its number, such as " cabinet 13", tried before either alone."""


def train_tokenizer(
    texts: Iterable[str],
    *,
    vocab_size: int,
    phrases: Sequence[str] = (),
    numbered_words: bool = False,
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on `texts`, with one token per role and one for the end of a turn.

    Args:
        texts: texts whose merges are counted.
        vocab_size: maximum number of tokens, including the 256 bytes.
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
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=special[1:],
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _pre_tokenizer(phrases: Sequence[str], *, numbered_words: bool) -> pre_tokenizers.PreTokenizer:
    """The split of a text into phrases, names and words, within which tokens are merged."""
    longest_first = sorted(phrases, key=len, reverse=True)
    fixed = "".join(re.escape(phrase) + r"(?!\p{L})|" for phrase in longest_first)
    names = NUMBERED_WORD if numbered_words else ""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(fixed + names + WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
