"""Text of each turn, with which a conversation's text only ever grows.

A conversation is what the model saw whenever it acted: the text up to the first generation prompt, then for each action
the reply with its end of turn, and the text that the template puts between the reply and the next generation prompt.
Templates may rewrite earlier turns (drop their thoughts, move the system message), so that text is rendered behind a
stand-in for the reply, never cut from a rendering of the whole conversation. A state's text is then a prefix of the
next state's for every template.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from qguide.qnet.errors import RenderingError
from qguide.qnet.rendering.chat_template import (
    ChatTemplate,
    Row,
    TemplateTraits,
    as_one_user,
    as_turns,
    call_row,
    call_shape,
    common_length,
    exchanges,
    result_row,
    text_row,
    with_folded_system,
)
from qguide.qnet.types import Message, ToolCall

_MARK: Final = "qguidemark"  # letters alone, which no template changes
_ASKED: Final = Message("user", "one")
_ANSWERED: Final = Message("user", "three")
_RESULT: Final = "done"

_Frame = tuple[bool, tuple[str, ...]]
"""Features of a reply that determine its frame: if it has a text, and the names that it calls."""
_PLAIN: Final[_Frame] = (True, ())
_CLOSED_THINKING = "\n</think>\n\n"


@dataclass(frozen=True, slots=True)
class ReplyFrame:
    """The text around a reply.

    Attributes:
        past: the reply is taken from a past turn's rendering, else from the last turn's.
        opened: rendering of what the reply answers, with the generation prompt.
        shared: how many of its characters begin the turn's rendering too.
        lead_in: text of the turn between the generation prompt and what is said.
        lead_out: text of the reply behind what is said, end of turn included.
        suffix: what follows the reply in that rendering.
        replaced: characters of another end of turn at the reply's end, which `end` replaces.
        end: what is put at the reply's end.
        past_tail: from the stand-in's last character to the end of a past turn.
    """

    past: bool
    opened: str
    shared: int
    lead_in: str
    lead_out: str
    suffix: str
    replaced: int
    end: str
    past_tail: str

    def reply(self, rendered: str) -> str | None:
        """The reply in a rendering of the same turns, end of turn included; None if it differs."""
        known = self.opened[: self.shared]
        if not rendered.startswith(known) or not rendered.endswith(self.suffix):
            return None
        body = rendered[self.shared : len(rendered) - len(self.suffix) - self.replaced] + self.end
        missing = self.opened[self.shared :]
        if body.startswith(missing):
            return body[len(missing) :]
        # The prompt opened thoughts that the template leaves out of the turn: they are closed, as
        # the model would have to do before it says anything.
        _, opens, behind = self.opened.rpartition("<think>")
        if opens and "</think>" not in behind and "</think>" not in body:
            return _CLOSED_THINKING + body
        return body


def find_frame(template: ChatTemplate, *, opened: str, past: str, last: str, mark: str) -> ReplyFrame:
    """The frame of a reply whose last word is `mark`.

    Args:
        opened: rendering of a user's turn with the generation prompt.
        past: of that turn, the reply and the answer to it.
        last: of that turn and the reply.
    """
    if mark not in past:
        raise RenderingError(
            "the chat template leaves out an assistant's turn once it is answered; use a template "
            "that prints the conversation"
        )
    behind_past, behind_last = _behind(past, mark), _behind(last, mark)
    past_tail, last_tail, replaced, end = _ends(template, behind_past, behind_last)
    if not past.startswith(opened) and last.startswith(opened):
        # A finished turn looks as if another prompt had opened it; the last one does not.
        chosen, tail, replaced = last, last_tail, 0
        end = "" if template.has_control(last_tail) else end
        is_past = False
    else:
        chosen, tail, is_past = past, past_tail, True
    shared = template.common_length(opened, chosen)
    behind = _behind(chosen, mark)
    frame = ReplyFrame(
        past=is_past,
        opened=opened,
        shared=shared,
        lead_in="",
        lead_out="",
        suffix=behind[len(tail) :],
        replaced=replaced,
        end=end,
        past_tail=past_tail,
    )
    lead_in, _, lead_out = (frame.reply(chosen) or "").partition(mark)
    return replace(frame, lead_in=lead_in, lead_out=lead_out)


def _ends(template: ChatTemplate, past: str, last: str) -> tuple[str, str, int, str]:
    """Tails of a past and of the last turn, and how the past one's end becomes the model's own."""
    common = past[: template.common_length(past, last)]
    if cut := template.end_of_turn(common):
        return common[:cut], common[:cut], 0, ""
    # gpt-oss ends its last turn with <|return|>, which is what the model says, and past ones with
    # <|end|>; GLM's turns end where the next begins, so the end is the tokenizer's.
    own = template.leading_control(last[len(common) :])
    if not own:
        return common, common, 0, template.eos
    other = template.leading_control(past[len(common) :])
    return common + other, common + own, len(other), own


def _behind(text: str, mark: str) -> str:
    return text.rpartition(mark)[2] if mark in text else ""


@dataclass(frozen=True, slots=True)
class Observed:
    """Text between two replies."""

    text: str
    prompt: str


class TurnTexts:
    """Renders replies, and what stands between them, with one chat template."""

    def __init__(self, template: ChatTemplate, traits: TemplateTraits) -> None:
        self.template = template
        self.traits = traits
        self._frames: dict[_Frame, ReplyFrame] = {}
        self._prompt = self.observed([self._row(_ASKED)]).prompt
        self.plain = self._frame(_PLAIN)

    @property
    def ends_of_turn(self) -> frozenset[str]:
        """Control tokens that end a reply, with and without calls."""
        frames = [self.plain]
        if (False, False) in self.traits.call_styles:
            frames.append(self._frame((False, ("qguide",))))
        found = (self.template.last_control(frame.lead_out) for frame in frames)
        return frozenset(token for token in found if token)

    def reply(self, message: Message) -> str:
        """An assistant's message behind the generation prompt, end of turn included."""
        message = self._without_thoughts(message)
        if self._calls(message):
            try:
                return self.reply_with_calls(message)
            except RenderingError:  # such as arguments that are no object; the text has them too
                message = Message("assistant", message.text)
        text = message.text
        rows = [self._row(_ASKED), text_row("assistant", text, self.traits.style)]
        if self.plain.past:
            rows.append(self._row(_ANSWERED))
        found = self.plain.reply(self.template.render(rows))
        return self.plain.lead_in + text + self.plain.lead_out if found is None else found

    def conversation(self, messages: Sequence[Message]) -> str:
        """A conversation that ends with a reply, as the template itself prints it as a whole."""
        try:
            return self.template.render(self._rows(messages, thoughts=True))
        except RenderingError:  # roles in an order that it refuses, as in `answer`
            rows = []
            for reply, answers in exchanges(messages):
                rows += [self._row(reply)] if reply else []
                rows += [self._row(as_one_user(answers))] if answers else []
            return self.template.render(rows)

    def opening(self, messages: Sequence[Message]) -> Observed:
        """The messages before the first reply."""
        if not messages:
            return Observed("", self._prompt)
        turns = self._turns(messages, first=True)
        if not self.traits.system_alone and all(turn.role == "system" for turn in turns):
            if (text := self._system_alone(turns[0])) is not None:
                return Observed(text, self._prompt)
            turns = with_folded_system(turns)
        try:
            return self.observed([self._row(turn) for turn in turns])
        except RenderingError:
            return self.observed([self._row(as_one_user(messages))])

    def answer(self, reply: Message, messages: Sequence[Message], *, before: Sequence[Message] = ()) -> Observed:
        """The messages between a reply and the next; those `before` are read where the text depends on its place."""
        try:
            return self.native_answer(reply, messages, before=before)
        except RenderingError:
            if not messages:
                return Observed("", self._prompt)
            # Roles in an order that the template refuses: what was observed is a user's turn.
            return self.native_answer(Message("assistant", ""), [as_one_user(messages)])

    def native_answer(self, reply: Message, messages: Sequence[Message], *, before: Sequence[Message] = ()) -> Observed:
        """The same, with each message in its own role."""
        frame = self._frame_of(reply)
        context = self._rows(before) if self.traits.positional and before else [self._row(_ASKED)]
        mark = _MARK
        while any(mark in message.text for message in (*before, *messages)):
            mark += "x"
        return self._behind(frame, self._answer_rows(frame, messages), context, mark)

    def _behind(self, frame: _Frame, rows: Sequence[Row], context: Sequence[Row], mark: str) -> Observed:
        turns = [*context, self._stand_in(frame, mark), *rows]
        whole = self._cut(self.template.render(turns, prompt=True), frame, mark)
        if not rows:
            return Observed("", whole)
        return self._split(whole, self._cut(self.template.render(turns), frame, mark))

    def _cut(self, text: str, frame: _Frame, mark: str) -> str:
        _, found, behind = text.rpartition(mark)
        if not found:
            raise RenderingError("the chat template leaves out an assistant's turn")
        tail = self._frame(frame).past_tail
        return behind[self.template.common_length(behind, tail) :]

    def observed(self, rows: Sequence[Row]) -> Observed:
        """Text of rows that open a conversation."""
        whole = self.template.render(rows, prompt=True)
        return self._split(whole, self.template.render(rows))

    def _split(self, whole: str, without_prompt: str) -> Observed:
        length = self.template.common_length(whole, without_prompt)
        return Observed(whole[:length], whole[length:])

    def reply_with_calls(self, message: Message) -> str:
        """The reply as the template prints its calls."""
        frame = self._frame(self._frame_of(message))
        names = [call.name for call in message.tool_calls]
        rows = [self._row(_ASKED), self._call_row(message)]
        if frame.past:
            rows += [result_row(_RESULT, i, names, self.traits.style) for i in range(len(names))]
        found = frame.reply(self.template.render(rows))
        if found is None:
            raise RenderingError("the chat template prints this call in another way than others")
        return found

    def _frame(self, key: _Frame) -> ReplyFrame:
        if key not in self._frames:
            asked, said = self._row(_ASKED), self._stand_in(key, _MARK)
            names = key[1]
            answers = [result_row(_RESULT, i, names, self.traits.style) for i in range(len(names))]
            self._frames[key] = find_frame(
                self.template,
                opened=self.template.render([asked], prompt=True),
                past=self.template.render([asked, said, *(answers or [self._row(_ANSWERED)])]),
                last=self.template.render([asked, said]),
                mark=_MARK,
            )
        return self._frames[key]

    def _frame_of(self, reply: Message) -> _Frame:
        if not self._calls(reply):
            return _PLAIN
        said = self._without_thoughts(reply).content
        return bool(said), tuple(call.name for call in reply.tool_calls)

    def _calls(self, message: Message) -> bool:
        if not message.tool_calls:
            return False
        return call_shape(self._without_thoughts(message)) in self.traits.call_styles

    def _stand_in(self, frame: _Frame, mark: str) -> Row:
        says, names = frame
        if not names:
            return text_row("assistant", mark, self.traits.style)
        *others, last = names
        calls = [ToolCall(name, '{"value": "other"}') for name in others]
        calls.append(ToolCall(last, f'{{"value": "{mark}"}}'))
        return self._call_row(Message("assistant", "said" if says else "", tuple(calls)))

    def _call_row(self, message: Message) -> Row:
        style = self.traits.call_styles[call_shape(message)]
        return call_row(message, replace(style, parts=self.traits.style.parts))

    def _row(self, message: Message) -> Row:
        return text_row(message.role, message.text, self.traits.style)

    def _rows(self, messages: Sequence[Message], *, thoughts: bool = False) -> list[Row]:
        """A whole conversation; with `thoughts` of replies without calls, for the template to keep or drop."""
        rows: list[Row] = []
        for reply, answers in exchanges(messages):
            if reply is None:
                rows += [self._row(turn) for turn in self._turns(answers, first=True)]
                continue
            said = self._without_thoughts(reply)
            text = reply if thoughts else said
            rows.append(self._call_row(said) if self._calls(said) else self._row(text))
            rows += self._answer_rows(self._frame_of(reply), answers)
        return rows

    def _answer_rows(self, frame: _Frame, messages: Sequence[Message]) -> list[Row]:
        names, rows, results = frame[1], [], 0
        for turn in self._turns(messages, called=bool(names)):
            if turn.role == "tool":
                rows.append(result_row(turn.content, results, names, self.traits.style))
                results += 1
            else:
                rows.append(self._row(turn))
        return rows

    def _turns(self, messages: Sequence[Message], *, first: bool = False, called: bool = False) -> list[Message]:
        turns = as_turns(
            messages,
            later_system=self.traits.later_system,
            users_in_a_row=self.traits.users_in_a_row,
            first=first,
            called=called,
        )
        return with_folded_system(turns) if first and self.traits.system == "folded" else turns

    def _without_thoughts(self, message: Message) -> Message:
        if self.traits.thinking == "kept" or "</think>" not in message.content:
            return message
        return replace(message, content=message.content.rpartition("</think>")[2].lstrip("\n"))

    def _system_alone(self, system: Message) -> str | None:
        """Turn of a system message without a user's; None where it has no turn of its own."""
        user = Message("user", _MARK)
        both = self.template.render([self._row(system), self._row(user)])
        before = both.partition(_MARK)[0]
        # What opens a user's turn is what stands before it here and behind a reply.
        later = self.native_answer(Message("assistant", ""), [user]).text.partition(_MARK)[0]
        length = common_length(before[::-1], later[::-1])
        opening = before[len(before) - length :].lstrip()
        text = before[: len(before) - len(opening)]
        closing = text.rpartition(system.content.strip())[2]
        return text if opening and closing.strip() else None
