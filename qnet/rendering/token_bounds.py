"""A lower bound on the tokens of a text, told from its length: no text is tokenized for it.

A tokenizer takes a second for a megabyte, which is far too long for a text that is refused anyway.
"""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_KEEPING = frozenset({"ByteLevel", "Digits", "Metaspace", "Split"})
"""Pre-tokenizers that leave every character in some token, unless they are told to remove it."""

_NFC_CHARACTERS = 2
"""Most characters that Unicode's canonical composition makes one byte of: ǖ may be written as 3
characters, and has 2 bytes."""


def longest_token(tokenizer: "PreTrainedTokenizerBase") -> int | None:
    """The most characters of a text that one token can stand for; None where nothing bounds them.

    There is a bound where every byte of a text ends in some token as it is: in a byte-level BPE, or
    one that falls back to bytes, without a normalizer that shortens and without tokens that swallow
    the spaces around them.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or type(backend.model).__name__ != "BPE":
        return None
    vocabulary = tokenizer.get_vocab()
    growth = _shortening(_state(backend.normalizer))
    if growth is None or not _keeps_all_bytes(backend, vocabulary):
        return None
    if any(token.lstrip or token.rstrip for token in tokenizer.added_tokens_decoder.values()):
        return None
    return growth * max(len(token.encode(errors="surrogatepass")) for token in vocabulary)


def _keeps_all_bytes(backend: Any, vocabulary: dict[str, int]) -> bool:
    from tokenizers.pre_tokenizers import ByteLevel

    steps = _steps(_state(backend.pre_tokenizer), "pretokenizers")
    if any(s["type"] not in _KEEPING or s.get("behavior") == "Removed" for s in steps):
        return False
    if any(step["type"] == "ByteLevel" for step in steps):
        return all(byte in vocabulary for byte in ByteLevel.alphabet())
    bytes_apart = (f"<0x{byte:02X}>" for byte in range(256))
    return bool(backend.model.byte_fallback) and all(byte in vocabulary for byte in bytes_apart)


def _shortening(normalizer: Any) -> int | None:
    """Most characters of a text that become one byte; None where that is not known."""
    most = 1
    for step in _steps(normalizer, "normalizers"):
        match step:
            case {"type": "NFC"}:
                most = _NFC_CHARACTERS
            case {"type": "Prepend"}:
                pass
            case {"type": "Replace", "pattern": {"String": before}, "content": after}:
                if len(before) > len(after):
                    return None
            case _:
                return None
    return most


def _state(part: Any) -> Any:
    """Serialized form of a part of a tokenizer; None where there is none."""
    return None if part is None else json.loads(part.__getstate__())


def _steps(state: Any, of: str) -> list[dict[str, Any]]:
    if state is None:
        return []
    return [step for one in state[of] for step in _steps(one, of)] if of in state else [state]
