"""Small tokenizer for models trained from scratch.

Byte-level BPE: it can write any text, and every word of an environment with a closed vocabulary
becomes one token.
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
"""A word and its number as one, tried before the word and the number alone: " cabinet 13"."""


def train_tokenizer(
    texts: Iterable[str],
    *,
    vocab_size: int,
    phrases: Sequence[str] = (),
    numbered_words: bool = False,
) -> PreTrainedTokenizerFast:
    """Byte-level BPE over `texts`, with one token per role and one for the end of a turn.

    Args:
        texts: to count the merges on.
        vocab_size: most tokens, the 256 bytes included.
        phrases: phrases of the environment, such as ", a" or "You arrive at loc". Each may become
            one token where it ends at a word's end: fewer tokens to train on, sample and score.
        numbered_words: a word and the number after it may be one token, so that a name such as
            "cabinet 13" is copied as a whole.
    """
    longest_first = sorted(phrases, key=len, reverse=True)
    fixed = "".join(re.escape(phrase) + r"(?!\p{L})|" for phrase in longest_first)
    names = NUMBERED_WORD if numbered_words else ""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(fixed + names + WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
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
