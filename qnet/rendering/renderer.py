"""Renderer from messages to tokens, the only one: SFT, Q training and serving all use it.

A conversation is cut at the turns and each turn is tokenised on its own, so the tokens of a
history are always a prefix of the tokens of any history that extends it. That is what lets a
server keep what it computed at the last step, and what makes training and serving agree.

    encode_history(h) + encode_candidate(a)  is a prefix of  encode_episode(h + (a, …))

What was rendered and tokenised is remembered turn by turn, each turn behind the turns that it
follows, so that a step costs its new turns alone, whatever the template.

Tool calls go through the chat template where it knows tools. Where it does not, a call is what
`Message.text` makes of it, a line `Action: name({"argument": "value"})` below what is said, and a
tool's result is a user's turn, as observations are. Ids of calls are drawn at random, so no token
comes from them: templates that print ids get zeros.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from qnet.errors import HistoryTooLongError, MalformedHistoryError, RenderingError
from qnet.rendering.token_bounds import longest_token
from qnet.support.lru_cache import LRUCache
from qnet.types import History, Message, ToolCall

RENDERER_VERSION = "1"

PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""For tokenizers of base models, which bring no chat template."""

_PROBE = (
    Message("user", "one"),
    Message("assistant", "two"),
    Message("user", "three"),
    Message("assistant", "four"),
)
_START = 0
_CACHED_CHARACTERS = 8 * 1024**2
_OVERHEAD_CHARACTERS = 64
"""Cost of keeping a short text, beside the text itself."""
_TOOL_PROBE = (
    _PROBE[0],
    Message("assistant", "", (ToolCall("qguide_probe", '{"first": "qguide_value"}'),)),
    Message("tool", "qguide_result"),
)
_TOOL_WORDS = ("qguide_probe", "first", "qguide_value", "qguide_result")
_CALL_ID = "000000000"
"""Nine characters: templates that look at ids want as many."""


_Block = tuple[Message, ...]
"""A turn, or the results of several tools in a row."""


@dataclass(frozen=True, slots=True)
class RenderedEpisode:
    """A whole conversation as tokens.

    Attributes:
        token_ids: every token, in order.
        action_spans: [start, end) of each assistant message, its end-of-turn token included;
            Q(s, a) is read at `end - 1`.
    """

    token_ids: list[int]
    action_spans: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Turn:
    """One message as text: what opens it, what the speaker says, what closes it."""

    opening: str
    said: str
    closing: str

    @property
    def characters(self) -> int:
        """Characters of all three texts."""
        return len(self.opening) + len(self.said) + len(self.closing)


_SILENT = _Turn("", "", "")


class Renderer:
    """Turns messages into tokens with the model's own chat template."""

    version = RENDERER_VERSION

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if tokenizer.eos_token_id is None:
            raise RenderingError("the tokenizer has no end-of-turn (eos) token; set eos_token")
        self.tokenizer = tokenizer
        self._eos: str = str(tokenizer.eos_token)
        self._template: str = tokenizer.chat_template or PLAIN_TEMPLATE
        self._longest_token = longest_token(tokenizer)
        self._special = frozenset(str(token) for token in tokenizer.all_special_tokens)
        self._tokens = LRUCache[str, tuple[int, ...]](size=_CACHED_CHARACTERS)
        self._known_turns = LRUCache[tuple[int, _Block], tuple[_Turn, int]](size=_CACHED_CHARACTERS)
        self._places = count(_START + 1)
        self._knows_tools = False
        self._turns_stand_alone = False
        self._prompt = self._generation_prompt(_PROBE[:1])
        self._knows_tools = self._probe_tools()
        self._turns_stand_alone = self._probe()

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The tokens that end an assistant's turn."""
        return (int(self.tokenizer.eos_token_id),)

    def encode_history(self, history: History, *, most_tokens: int | None = None) -> list[int]:
        """Tokens of the state, up to and including the assistant's generation prompt.

        Args:
            most_tokens: see `encode_state`.

        Raises:
            HistoryTooLongError: it has more than `most_tokens`, as far as its length tells.
            MalformedHistoryError: a message holds one of the tokenizer's control tokens.
            RenderingError: the chat template rewrites earlier turns.
        """
        return self.encode_state(history, most_tokens=most_tokens).token_ids

    def encode_state(self, history: History, *, most_tokens: int | None = None) -> RenderedEpisode:
        """The result of `encode_history`, and the places of its actions.

        Args:
            most_tokens: a history that is so long that it surely has more is not tokenized.

        Raises:
            HistoryTooLongError: it has more than `most_tokens`, as far as its length tells.
            MalformedHistoryError: a message holds one of the tokenizer's control tokens.
            RenderingError: the chat template rewrites earlier turns.
        """
        episode = self.encode_episode(history, most_tokens=most_tokens)
        prompt = self._encode(self._generation_prompt(history))
        return RenderedEpisode([*episode.token_ids, *prompt], episode.action_spans)

    def encode_candidate(self, message: Message, *, most_tokens: int | None = None) -> list[int]:
        """Tokens of an assistant's reply after `encode_history`, end-of-turn included.

        Args:
            most_tokens: see `encode_state`.

        Raises:
            HistoryTooLongError: it has more than `most_tokens`, as far as its length tells.
            MalformedHistoryError: it holds one of the tokenizer's control tokens.
        """
        said = self._assistant_turn(_PROBE[:1], message).said
        self._refuse_longer("a candidate", len(said), most_tokens)
        self._check(message)
        return list(self._encode(said))

    def encode_observation(
        self,
        history: History,
        action: Message,
        observation: History,
        *,
        most_tokens: int | None = None,
    ) -> list[int]:
        """Tokens between an action and the reply after it: its observation as the next turn.

        `encode_history(h) + encode_candidate(a) + encode_observation(h, a, o)` is
        `encode_history(h + (a, *o))`.

        Args:
            most_tokens: see `encode_state`.

        Raises:
            HistoryTooLongError: the whole has more than `most_tokens`, as far as its length tells.
            MalformedHistoryError: a message holds one of the tokenizer's control tokens.
            RenderingError: the chat template rewrites earlier turns.
        """
        whole = self.encode_state((*history, action, *observation), most_tokens=most_tokens)
        _, end = whole.action_spans[sum(message.role == "assistant" for message in history)]
        return whole.token_ids[end:]

    def encode_episode(
        self, messages: Sequence[Message], *, most_tokens: int | None = None
    ) -> RenderedEpisode:
        """Tokens of a conversation and where its actions stand.

        Args:
            most_tokens: see `encode_state`.

        Raises:
            HistoryTooLongError: it has more than `most_tokens`, as far as its length tells.
            MalformedHistoryError: a message holds one of the tokenizer's control tokens.
            RenderingError: the chat template rewrites earlier turns.
        """
        token_ids: list[int] = []
        spans: list[tuple[int, int]] = []
        for turn, message in zip(self._turns(messages, most_tokens), messages, strict=True):
            token_ids += self._encode(turn.opening)
            start = len(token_ids)
            token_ids += self._encode(turn.said)
            if message.role == "assistant":
                spans.append((start, len(token_ids)))
            token_ids += self._encode(turn.closing)
        return RenderedEpisode(token_ids, spans)

    def decode_reply(self, token_ids: Sequence[int]) -> Message:
        """The assistant's message that these generated tokens say.

        A control token that was spelled letter by letter is left out like a real one, so that
        what a policy drew can always be scored.
        """
        text = str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))
        while spelled := [token for token in self._special if token in text]:
            for token in spelled:
                text = text.replace(token, "")
        return Message("assistant", text.strip())

    def _turns(self, messages: Sequence[Message], most_tokens: int | None) -> list[_Turn]:
        turns: list[_Turn] = []
        place, characters = _START, 0
        for block in _blocks(messages):
            known = self._known_turns.get((place, block))
            if known is None:
                known = self._new_turn(messages[: len(turns)], block)
                # Refused before it is searched, which takes longer than rendering it, and before
                # it is kept: what nobody is served would push out what others use.
                self._refuse_longer("the history", characters + known[0].characters, most_tokens)
                for message in block:
                    self._check(message)
                size = sum(len(message.text) for message in block) + _OVERHEAD_CHARACTERS
                self._known_turns.put((place, block), known, size=size)
            turn, place = known
            characters += turn.characters
            self._refuse_longer("the history", characters, most_tokens)
            turns += [_SILENT] * (len(block) - 1)
            turns.append(turn)
        return turns

    def _refuse_longer(self, what: str, characters: int, most_tokens: int | None) -> None:
        if most_tokens is None or self._longest_token is None:
            return
        if characters > most_tokens * self._longest_token:
            raise HistoryTooLongError(
                f"{what} has at least {characters // self._longest_token:,} tokens in its first "
                f"{characters:,} characters; the model takes {most_tokens:,}; shorten it"
            )

    def _new_turn(self, before: Sequence[Message], block: _Block) -> tuple[_Turn, int]:
        """A turn and the id of the prefix that ends with it."""
        if self._turns_stand_alone:
            return self._turn((), block), _START
        return self._turn(before, block), next(self._places)

    def _turn(self, before: Sequence[Message], block: _Block) -> _Turn:
        if block[0].role == "assistant":
            return self._assistant_turn(before, block[0])
        return _Turn("", self._segment(before, *block), "")

    def _assistant_turn(self, before: Sequence[Message], message: Message) -> _Turn:
        segment = self._segment(() if self._turns_stand_alone else before, message)
        prompt = self._generation_prompt(before)
        if not segment.startswith(prompt):
            raise RenderingError(
                f"the chat template opens an assistant turn with {segment[: len(prompt)]!r} but "
                f"prompts for one with {prompt!r}; use a template where the two agree"
            )
        said, eos, closing = segment[len(prompt) :].partition(self._eos)
        return _Turn(prompt, said + self._eos, closing if eos else "")

    def _segment(self, before: Sequence[Message], *block: Message) -> str:
        head = self._render(before)
        whole = self._render([*before, *block])
        if not whole.startswith(head):
            raise RenderingError(
                "the chat template rewrites earlier turns when a new one arrives; "
                "use a template whose rendering only ever grows"
            )
        return whole[len(head) :]

    def _generation_prompt(self, history: Sequence[Message]) -> str:
        if self._turns_stand_alone:
            return self._prompt
        return self._render(history, prompt=True)[len(self._render(history)) :]

    def _render(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        if not messages:
            return ""
        rows = [self._row(message) for message in messages]
        try:
            text = self.tokenizer.apply_chat_template(
                rows, chat_template=self._template, tokenize=False, add_generation_prompt=prompt
            )
        except TemplateError as error:
            raise RenderingError(
                f"the chat template refuses these turns: {error}; send such as the "
                "model was trained on"
            ) from error
        return str(text)

    def _row(self, message: Message) -> dict[str, Any]:
        """The template's input for a turn."""
        role = "system" if message.role == "developer" else message.role
        if not self._knows_tools:
            return {"role": "user" if role == "tool" else role, "content": message.text}
        row: dict[str, Any] = {"role": role, "content": message.content}
        if message.tool_calls:
            row["tool_calls"] = [
                {
                    "id": _CALL_ID,
                    "type": "function",
                    "function": {"name": call.name, "arguments": _arguments(call)},
                }
                for call in message.tool_calls
            ]
        if role == "tool":
            row["tool_call_id"] = _CALL_ID
        return row

    def _probe_tools(self) -> bool:
        """True if the template renders a tool call and its result."""
        self._knows_tools = True
        try:
            said = [
                self._turn(_TOOL_PROBE[:number], (message,)).said
                for number, message in enumerate(_TOOL_PROBE)
            ]
        except Exception:  # templates raise their own errors on a conversation they refuse
            return False
        return all(word in said[1] + said[2] for word in _TOOL_WORDS)

    def _probe(self) -> bool:
        """True if the rendering of a turn does not depend on the turns before it."""
        probes = (_PROBE, _TOOL_PROBE) if self._knows_tools else (_PROBE,)
        try:
            return all(
                "".join(self._render([message]) for message in probe) == self._render(probe)
                for probe in probes
            )
        except Exception:  # templates raise their own errors on a conversation they refuse
            return False

    def _check(self, message: Message) -> None:
        text = message.text
        for token in self._special:
            if token in text:
                raise MalformedHistoryError(
                    f"the {message.role}'s message holds the control token {token!r}, which would "
                    "forge a turn; remove it"
                )

    def _encode(self, text: str) -> tuple[int, ...]:
        if not text:
            return ()
        cached = self._tokens.get(text)
        if cached is None:
            cached = tuple(self.tokenizer.encode(text, add_special_tokens=False))
            self._tokens.put(text, cached, size=len(text) + _OVERHEAD_CHARACTERS)
        return cached


def _blocks(messages: Sequence[Message]) -> list[_Block]:
    """The turns one by one, but consecutive tool results together: templates frame them as one."""
    blocks: list[_Block] = []
    for message in messages:
        if blocks and message.role == blocks[-1][0].role == "tool":
            blocks[-1] += (message,)
        else:
            blocks.append((message,))
    return blocks


def _arguments(call: ToolCall) -> object:
    """A dictionary, as templates expect it; the text itself where it is none."""
    try:
        arguments = json.loads(call.canonical_arguments)
    except (ValueError, RecursionError):
        return call.canonical_arguments
    return arguments if isinstance(arguments, dict) else call.canonical_arguments
