"""Renderer from messages to tokens, the only one: SFT, Q training and serving all use it.

A state is rendered as the model saw it when it acted, and every piece of text is tokenised on its
own, so the tokens of a history are a prefix of the tokens of any history that extends it, whatever
the chat template does with earlier turns (`qguide.qnet.rendering.turn_texts`). That is what lets a
server keep what it computed at the last step, and what makes training and serving agree.

    encode_history(h) + encode_candidate(a)  is a prefix of  encode_history(h + (a, …))

What was rendered and tokenised is remembered exchange by exchange (an action and what was observed
after it), so that a step costs its new turns alone.

Tool calls go through the chat template where it knows tools. Where it does not, a call is what `Message.text` makes of
it, a line `Action: name({"argument": "value"})` below what is said, and a tool's result is a user's turn, as
observations are. Ids of calls are drawn at random, so no token comes from them: templates that print ids get numbers.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cachetools import LRUCache

from qguide.qnet.errors import HistoryTooLongError, MalformedHistoryError, RenderingError
from qguide.qnet.rendering.chat_template import THINKING_TAGS, ChatTemplate, TemplateTraits, exchanges
from qguide.qnet.rendering.template_probe import build_turn_texts
from qguide.qnet.rendering.turn_texts import Observed
from qguide.qnet.rendering.version import RENDERER_VERSION
from qguide.qnet.types import History, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Key = TypeVar("Key")
Value = TypeVar("Value")

_START = 0
_CACHED_CHARACTERS = 8 * 1024**2
_OVERHEAD_CHARACTERS = 64  # cost of a short piece beside its text
_SINGLE_TURNS = (Message("user", "one"), Message("assistant", "two"), Message("user", "three"))

_Cache = LRUCache[Key, tuple[Value, int]]  # values, each with its size in characters
_Exchange = tuple[Message | None, tuple[Message, ...]]
"""An action and what was observed after it; the first has no action."""
_KEEPING = frozenset({"ByteLevel", "Digits", "Metaspace", "Split"})
"""Pre-tokenizers that leave every character in some token, unless they are told to remove it."""
_NFC_CHARACTERS = 2
"""Most characters that Unicode's canonical composition makes one byte of: ǖ may be written as 3
characters, and has 2 bytes."""


@dataclass(frozen=True, slots=True)
class RenderedEpisode:
    """A whole conversation as tokens.

    Attributes:
        action_spans: [start, end) of each assistant message, its end-of-turn token included;
            Q(s, a) is read at `end - 1`.
    """

    token_ids: list[int]
    action_spans: list[tuple[int, int]]


class Piece(NamedTuple):
    """A token of a plain text.

    Attributes:
        start, stop: its bytes in the text, [start, stop); None for a special token.
    """

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


@dataclass(frozen=True, slots=True)
class _Rendered:
    """An exchange as text."""

    said: str
    observed: Observed

    @property
    def characters(self) -> int:
        """Length of all its text."""
        return len(self.said) + len(self.observed.text) + len(self.observed.prompt)


class Renderer:
    """Turns messages into tokens with the model's own chat template."""

    version = RENDERER_VERSION

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        if tokenizer.eos_token_id is None:
            raise RenderingError("the tokenizer has no end-of-turn (eos) token; set eos_token")
        self.tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer)
        self._texts = build_turn_texts(self._template)
        self._forbidden = self._template.control_tokens - THINKING_TAGS
        self._longest_token = longest_token(tokenizer)
        self._tokens: _Cache[str, tuple[int, ...]] = _sized_cache()
        self._known: _Cache[tuple[int, _Exchange], tuple[_Rendered, int]] = _sized_cache()
        self._lock = Lock()  # of both: several threads tokenize
        self._places = count(_START + 1)

    @property
    def traits(self) -> TemplateTraits:
        """Traits of the chat template, which decide how messages are put to it."""
        return self._texts.traits

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The tokens that end an assistant's turn."""
        ends = sorted(self._texts.ends_of_turn - {self._template.eos})
        ids = [self.tokenizer.encode(end, add_special_tokens=False) for end in ends]
        return (int(self.tokenizer.eos_token_id), *(int(found[-1]) for found in ids))

    @property
    def renders_as_version_1(self) -> bool:
        """True if the tokens are those of the first renderer, which cut at messages.

        It cut what this one cuts where each turn is printed alone, between control tokens.
        """
        rows = [{"role": m.role, "content": m.content} for m in _SINGLE_TURNS]
        try:
            alone = [self._template.render([row]) for row in rows]
            together = self._template.render(rows)
        except RenderingError:
            return False
        return together == "".join(alone) and all(
            self._template.leading_control(text) and text.endswith(self._template.eos) for text in alone
        )

    def encode_history(self, history: History, *, most_tokens: int | None = None) -> list[int]:
        """Tokens of the state, up to and including the assistant's generation prompt."""
        return self.encode_state(history, most_tokens=most_tokens).token_ids

    def encode_state(self, history: History, *, most_tokens: int | None = None) -> RenderedEpisode:
        """The result of `encode_history`, and the places of its actions.

        Args:
            most_tokens: a history that is so long that it surely has more is not tokenized.
        """
        return self._join(self._exchanges(history, most_tokens), state=True)

    def exchange_tokens(self, history: History) -> list[int]:
        """Number of tokens of each exchange of a state; their sum is that of `encode_state`.

        The first is of what precedes the first action, however little that is.
        """
        return [
            sum(map(len, map(self._encode, (one.said, one.observed.text, one.observed.prompt))))
            for one in self._exchanges(history, None)
        ]

    def encode_candidate(self, message: Message, *, most_tokens: int | None = None) -> list[int]:
        """Tokens of an assistant's reply after `encode_history`, end-of-turn included."""
        said = self._texts.reply(message)
        self._refuse_longer("a candidate", len(said), most_tokens)
        self._check(message)
        return list(self._encode(said))

    def encode_observation(
        self, history: History, action: Message, observation: History, *, most_tokens: int | None = None
    ) -> list[int]:
        """Tokens between an action and the reply after it: its observation as the next turn.

        `encode_history(h) + encode_candidate(a) + encode_observation(h, a, o)` is `encode_history(h + (a, *o))`.
        """
        whole = self.encode_state((*history, action, *observation), most_tokens=most_tokens)
        _, end = whole.action_spans[sum(message.role == "assistant" for message in history)]
        return whole.token_ids[end:]

    def encode_episode(self, messages: Sequence[Message]) -> RenderedEpisode:
        """Tokens of a conversation and where its actions stand."""
        return self._join(self._exchanges(messages, None), state=False)

    def encode_conversation(self, messages: Sequence[Message], *, most_tokens: int | None = None) -> list[int]:
        """Tokens of a conversation that ends with a reply, printed and tokenised as a whole.

        That is `apply_chat_template` without a generation prompt, as Hugging Face's classifiers
        are trained. These tokens need not be a prefix of those of the conversation that goes on.
        """
        text = self._texts.conversation(messages)
        self._refuse_longer("the conversation", len(text), most_tokens)
        for message in messages:
            self._check(message)
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def pieces(self, text: str, *, special: bool) -> Iterator[Piece]:
        """Tokens of a plain text without a conversation around it, framed by `special` ones, and where each stands."""
        if not self.tokenizer.is_fast:
            raise RenderingError("the tokenizer is a slow one, which does not say where tokens are")
        coded = self.tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
        before = [0, *accumulate(len(one.encode(errors="replace")) for one in text)]
        framing = coded.encodings[0].special_tokens_mask
        for number, frames, (start, stop) in zip(coded["input_ids"], framing, coded["offset_mapping"], strict=True):
            if frames:
                spelled = str(self.tokenizer.convert_ids_to_tokens(number))
                yield Piece(number, spelled, True, None, None)
            else:
                yield Piece(number, text[start:stop], False, before[start], before[stop])

    def decode_reply(self, token_ids: Sequence[int]) -> Message:
        """The assistant's message that these generated tokens say.

        A control token that was spelled letter by letter is left out like a real one, so that
        what a policy drew can always be scored.
        """
        lead_in = self._texts.plain.lead_in
        if self._template.has_control(lead_in):
            # A channel's name would be left in the text by decoding without control tokens.
            whole = str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))
            _, opened, text = whole.rpartition(lead_in)
            if opened:
                return Message("assistant", self._without_control(text).strip())
        text = str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))
        return Message("assistant", self._without_control(text.removeprefix(lead_in)).strip())

    def _without_control(self, text: str) -> str:
        # Until none is left: to take one out may put the parts of another together.
        while spelled := [token for token in self._template.control_tokens if token in text]:
            for token in spelled:
                text = text.replace(token, "")
        return text

    def _join(self, rendered: Sequence[_Rendered], *, state: bool) -> RenderedEpisode:
        """Tokens of exchanges, with the generation prompt behind a `state`."""
        token_ids: list[int] = []
        spans: list[tuple[int, int]] = []
        for number, exchange in enumerate(rendered, 1):
            start = len(token_ids)
            token_ids += self._encode(exchange.said)
            if exchange.said:
                spans.append((start, len(token_ids)))
            token_ids += self._encode(exchange.observed.text)
            if state or number < len(rendered):
                token_ids += self._encode(exchange.observed.prompt)
        return RenderedEpisode(token_ids, spans)

    def _exchanges(self, messages: Sequence[Message], most_tokens: int | None) -> list[_Rendered]:
        found: list[_Rendered] = []
        place, characters, start = _START, 0, 0
        for exchange in exchanges(messages):
            reply, observed = exchange
            new = observed if reply is None else (reply, *observed)
            known = self._look_up(self._known, (place, exchange))
            if known is None:
                rendered = self._render(exchange, messages[:start])
                # Refused before it is searched, which takes longer than rendering it, and before
                # it is kept: a refused history must not evict those of others.
                self._refuse_longer("the history", characters + rendered.characters, most_tokens)
                for message in new:
                    self._check(message)
                known = rendered, next(self._places) if self.traits.positional else _START + 1
                self._keep(self._known, (place, exchange), known, characters=rendered.characters)
            rendered, place = known
            characters += rendered.characters
            self._refuse_longer("the history", characters, most_tokens)
            found.append(rendered)
            start += len(new)
        return found

    def _render(self, exchange: _Exchange, before: Sequence[Message]) -> _Rendered:
        reply, observed = exchange
        if reply is None:
            return _Rendered("", self._texts.opening(observed))
        said = self._texts.reply(reply)
        return _Rendered(said, self._texts.answer(reply, observed, before=before))

    def _refuse_longer(self, what: str, characters: int, most_tokens: int | None) -> None:
        if most_tokens is None or self._longest_token is None:
            return
        if characters > most_tokens * self._longest_token:
            raise HistoryTooLongError(
                f"{what} has at least {characters // self._longest_token:,} tokens in its first "
                f"{characters:,} characters; the model takes {most_tokens:,}; shorten it"
            )

    def _check(self, message: Message) -> None:
        text = message.text
        for token in self._forbidden:
            if token in text:
                raise MalformedHistoryError(
                    f"the {message.role}'s message holds the control token {token!r}, which would "
                    "forge a turn; remove it"
                )

    def _encode(self, text: str) -> tuple[int, ...]:
        if not text:
            return ()
        cached = self._look_up(self._tokens, text)
        if cached is None:
            cached = tuple(self.tokenizer.encode(text, add_special_tokens=False))
            self._keep(self._tokens, text, cached, characters=len(text))
        return cached

    def _look_up(self, cache: "_Cache[Key, Value]", key: Key) -> Value | None:
        with self._lock:
            found = cache.get(key)
        return None if found is None else found[0]

    def _keep(self, cache: "_Cache[Key, Value]", key: Key, value: Value, *, characters: int) -> None:
        size = characters + _OVERHEAD_CHARACTERS
        if size <= _CACHED_CHARACTERS:
            with self._lock:
                cache[key] = value, size


def _sized_cache() -> "LRUCache[Any, Any]":
    return LRUCache(_CACHED_CHARACTERS, getsizeof=lambda entry: entry[1])


def longest_token(tokenizer: "PreTrainedTokenizerBase") -> int | None:
    """The most characters of a text that one token can stand for; None where nothing bounds them.

    There is a bound where every byte of a text ends in some token as it is: in a byte-level BPE, or one that falls back
    to bytes, without a normalizer that shortens and without tokens that swallow the spaces around them.
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
    return None if part is None else json.loads(part.__getstate__())


def _steps(state: Any, of: str) -> list[dict[str, Any]]:
    if state is None:
        return []
    return [step for one in state[of] for step in _steps(one, of)] if of in state else [state]
