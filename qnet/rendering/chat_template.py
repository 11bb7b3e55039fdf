"""A tokenizer's chat template: rows to text, with the control tokens that the text holds."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from qguide.qnet.errors import RenderingError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""For tokenizers of base models, which bring no chat template."""

THINKING_TAGS: Final = frozenset({"<think>", "</think>", "[THINK]", "[/THINK]"})
"""Control tokens that replies may hold: they delimit thinking and do not end a turn."""

_DATE: Final = {
    "%d": "26",
    "%-d": "26",
    "%e": "26",
    "%b": "Jul",
    "%B": "July",
    "%m": "07",
    "%Y": "2024",
    "%y": "24",
    "%A": "Friday",
    "%a": "Fri",
    "%H": "00",
    "%M": "00",
    "%S": "00",
}
# Templates that print today's date would make other tokens in serving than in training, and throw
# the cached prefixes away at midnight. The macro hides transformers' function of that name.
_FIXED_DATE: Final = (
    "{% macro strftime_now(format='%Y-%m-%d') %}{{ format"
    + "".join(f" | replace('{name}', '{value}')" for name, value in _DATE.items())
    + " }}{% endmacro %}{{ '' }}"
)

Row = dict[str, Any]
"""Template's input for one message."""


class ChatTemplate:
    """Renders rows with the tokenizer's template, on the same date every day.

    Attributes:
        eos: the tokenizer's end-of-turn token.
        control_tokens: every special token; messages may contain only those in `THINKING_TAGS`.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self.eos = str(tokenizer.eos_token)
        self._source = _source_of(tokenizer)
        added = (str(t.content) for t in tokenizer.added_tokens_decoder.values() if t.special)
        self.control_tokens = frozenset({*map(str, tokenizer.all_special_tokens), *added})
        longest_first = sorted(self.control_tokens, key=len, reverse=True)
        # Templates concatenate bos_token to strings, which fails on None.
        self._defaults: dict[str, Any] = {} if tokenizer.bos_token else {"bos_token": ""}
        self._longest = max(map(len, longest_first))
        self._control = re.compile("|".join(map(re.escape, longest_first)))

    def render(self, rows: Sequence[Row], *, prompt: bool = False) -> str:
        """Text of the rows."""
        try:
            text = self._tokenizer.apply_chat_template(
                list(rows),
                chat_template=self._source,
                tokenize=False,
                add_generation_prompt=prompt,
                **self._defaults,
            )
        except Exception as error:  # templates fail in any way on a conversation they do not expect
            raise RenderingError(
                f"the chat template refuses these turns: {error}; send turns in the roles and "
                "order it was trained on"
            ) from error
        return str(text)

    def common_length(self, one: str, other: str) -> int:
        """Length of the common beginning of two texts that cuts no control token of either."""
        length = common_length(one, other)
        for text in (one, other):
            for found in self._control.finditer(text, max(0, length - self._longest)):
                if found.start() >= length:
                    break
                if found.start() < length < found.end():
                    length = found.start()
        return length

    def has_control(self, text: str) -> bool:
        """True if the text holds a control token."""
        return self._control.search(text) is not None

    def leading_control(self, text: str) -> str:
        """The control token that the text begins with, or nothing."""
        found = self._control.match(text)
        return found.group() if found else ""

    def last_control(self, text: str) -> str:
        """The control token that the text ends with, or nothing."""
        found = [one for one in self._control.finditer(text) if one.end() == len(text)]
        return found[-1].group() if found else ""

    def end_of_turn(self, text: str) -> int:
        """Length of the text up to its first eos, else its last control token; 0 without any."""
        head, eos, _ = text.partition(self.eos)
        if eos:
            return len(head) + len(eos)
        return max((found.end() for found in self._control.finditer(text)), default=0)


def common_length(one: str, other: str) -> int:
    """Length of the common beginning of two texts."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one.startswith(other[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


def _source_of(tokenizer: "PreTrainedTokenizerBase") -> str:
    template: Any = tokenizer.chat_template or PLAIN_TEMPLATE
    if isinstance(template, dict):  # several templates by name
        template = template.get("default") or next(iter(template.values()))
    source = str(template)
    return _FIXED_DATE + source if "strftime_now" in source else source
