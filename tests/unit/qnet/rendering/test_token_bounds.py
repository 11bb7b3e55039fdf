"""A text that is surely too long is refused before anybody tokenizes it."""

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from qguide.qnet.errors import HistoryTooLongError
from qguide.qnet.models.checkpoint import load_qnet
from qguide.qnet.models.loading import embedded_path
from qguide.qnet.rendering.renderer import Renderer, longest_token
from qguide.qnet.types import Message
from tests.support.tiny_models import renderer

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGED = "Ġgo"


def byte_level(**more: Any) -> PreTrainedTokenizerFast:
    """A byte-level BPE that knows one word."""
    vocabulary = {token: i for i, token in enumerate([*ALPHABET, "Ġg", MERGED])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("Ġ", "g"), ("Ġg", "o")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    for name, part in more.items():
        setattr(tokenizer, name, part)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def byte_fallback(*, missing: str = "") -> PreTrainedTokenizerFast:
    """A BPE of few characters that spells the others in bytes, as Llama 2's does."""
    known = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "g", "o", "▁g", "▁go"]
    vocabulary = {token: i for i, token in enumerate(known) if token != missing}
    model = models.BPE(vocabulary, [("▁", "g"), ("▁g", "o")], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


BOUNDED = {
    "byte level": byte_level(),
    "byte level after NFC": byte_level(normalizer=normalizers.NFC()),
    "byte fallback": byte_fallback(),
}
TEXTS = st.text(st.sampled_from("go  ǖ한é🙂\n")) | st.text()


@pytest.mark.parametrize("kind", BOUNDED)
@given(text=TEXTS)
def test_no_token_stands_for_more_characters_than_the_bound(kind: str, text: str) -> None:
    tokenizer = BOUNDED[kind]
    bound = longest_token(tokenizer)
    assert bound is not None
    for form in (text, unicodedata.normalize("NFD", text)):
        assert len(form) <= bound * len(tokenizer.encode(form, add_special_tokens=False))


def test_tokenizers_that_may_swallow_text_have_no_bound() -> None:
    spaced = byte_level()
    spaced.add_tokens([AddedToken("<mask>", lstrip=True)])
    removing = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(use_regex=False)]
    )
    wordpiece = Tokenizer(models.WordPiece({"[UNK]": 0, "go": 1}, unk_token="[UNK]"))
    unbounded = {
        "a token that swallows spaces": spaced,
        "a pre-tokenizer that removes": byte_level(pre_tokenizer=removing),
        "a normalizer that strips": byte_level(normalizer=normalizers.Strip()),
        "one that shortens": byte_level(normalizer=normalizers.Replace("gogo", "g")),
        "an unknown word of any length": PreTrainedTokenizerFast(tokenizer_object=wordpiece),
        "a byte that no token has": byte_fallback(missing="<0x41>"),
    }
    assert {name: longest_token(tokenizer) for name, tokenizer in unbounded.items()} == dict.fromkeys(unbounded)


def test_the_embedded_models_tokenizer_has_a_bound() -> None:
    bound = longest_token(load_qnet(embedded_path("qnet")).renderer.tokenizer)
    assert bound is not None
    assert bound < 100


def test_a_history_that_is_surely_too_long_is_not_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Renderer(renderer().tokenizer)
    bound = longest_token(mine.tokenizer)
    assert bound is not None
    encoded: list[str] = []
    real = mine.tokenizer.encode

    def encode(text: str, **options: Any) -> Any:
        encoded.append(text)
        return real(text, **options)

    monkeypatch.setattr(mine.tokenizer, "encode", encode)
    long = Message("user", "x" * (101 * bound))
    with pytest.raises(HistoryTooLongError, match=r"history .*10\d tokens .* 100;"):
        mine.encode_history((long,), most_tokens=100)
    with pytest.raises(HistoryTooLongError, match=r"candidate .*10\d tokens .* 100;"):
        mine.encode_candidate(Message("assistant", long.content), most_tokens=100)
    assert encoded == []
    # Nor is it searched for control tokens, which would be refused for another reason.
    forged = Message("user", long.content + str(mine.tokenizer.eos_token))
    with pytest.raises(HistoryTooLongError):
        mine.encode_history((forged,), most_tokens=100)
    assert len(mine.encode_history((Message("user", "x"),), most_tokens=100)) > 1


def test_many_turns_are_too_long_together() -> None:
    mine = Renderer(renderer().tokenizer)
    bound = longest_token(mine.tokenizer)
    assert bound is not None
    turn = Message("user", "x" * (bound * 60))
    assert mine.encode_history((turn,), most_tokens=100)
    with pytest.raises(HistoryTooLongError, match=r"history .*12\d tokens .* 100;"):
        mine.encode_history((turn, turn), most_tokens=100)
