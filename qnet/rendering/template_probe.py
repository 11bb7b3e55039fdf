"""Finds a chat template's traits by rendering small conversations."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from qguide.qnet.errors import RenderingError
from qguide.qnet.rendering.chat_template import CALL_STYLES, ChatTemplate, RowStyle, System, TemplateTraits, text_row
from qguide.qnet.rendering.turn_texts import Observed, TurnTexts
from qguide.qnet.types import Message, ToolCall

_SYSTEM: Final = Message("system", "qguidesystem")
_FIRST: Final = Message("user", "qguidefirst")
_SECOND: Final = Message("user", "qguidesecond")
_SAID: Final = Message("assistant", "qguidesaid")
_THOUGHT: Final = "qguidethought"
_CALLS: Final = (
    ToolCall("qguide_probe", '{"first": "qguide_value"}'),
    ToolCall("qguide_other", '{"second": "qguide_worth"}'),
)
_RESULTS: Final = (Message("tool", "qguide_result"), Message("tool", "qguide_outcome"))
_WORDS_OF_CALLS: Final = (
    ("qguide_probe", "first", "qguide_value", "qguide_result"),
    ("qguide_other", "second", "qguide_worth", "qguide_outcome"),
)
_SHAPES: Final = ((False, False), (True, False), (False, True), (True, True))


def build_turn_texts(template: ChatTemplate) -> TurnTexts:
    """Turns of the template, rendered as it wants them."""
    texts = _with_style(template)
    traits = replace(
        texts.traits,
        thinking="kept" if _keeps_thoughts(template, texts) else "dropped",
        system=_system(template, texts),
        system_alone=_opens_with(texts, _SYSTEM),
        later_system=_answers_with(texts, _SYSTEM, _SECOND),
        users_in_a_row=_answers_with(texts, _FIRST, _SECOND) and _opens_with(texts, _FIRST, _SECOND),
        positional=_is_positional(texts),
    )
    for shape in _SHAPES:
        for style in CALL_STYLES:
            tried = replace(traits, call_styles={**traits.call_styles, shape: style})
            if _prints_calls(template, tried, says=shape[0], several=shape[1]):
                traits = tried
                break
    return TurnTexts(template, traits)


def _with_style(template: ChatTemplate) -> TurnTexts:
    """Turns with content as text, or else as a list of parts."""
    refused: RenderingError | None = None
    for style in (RowStyle(), RowStyle(parts=True)):
        try:
            texts = TurnTexts(template, TemplateTraits(style=style))
        except RenderingError as error:
            refused = refused or error
            continue
        if _opens_with(texts, _FIRST):
            return texts
    raise refused or RenderingError(
        "the chat template leaves out what the user says; use one that prints the conversation"
    )


def _keeps_thoughts(template: ChatTemplate, texts: TurnTexts) -> bool:
    style = texts.traits.style
    thought = f"<think>\n{_THOUGHT}\n</think>\n\n{_SAID.content}"
    rows = [
        text_row("user", _FIRST.content, style),
        text_row("assistant", thought, style),
        text_row("user", _SECOND.content, style),
    ]
    return _THOUGHT in template.render(rows)


def _system(template: ChatTemplate, texts: TurnTexts) -> System:
    rows = [text_row(m.role, m.content, texts.traits.style) for m in (_SYSTEM, _FIRST)]
    try:
        text = template.render(rows, prompt=True)
    except RenderingError:
        return "folded"
    between = text.partition(_SYSTEM.content)[2].partition(_FIRST.content)
    if not between[1]:
        return "folded"
    return "own turn" if between[0].strip() else "first user turn"


def _opens_with(texts: TurnTexts, *messages: Message) -> bool:
    """True if the template prints all of the messages at the start of a conversation."""
    return _prints(
        lambda: texts.observed([text_row(m.role, m.content, texts.traits.style) for m in messages]), messages
    )


def _answers_with(texts: TurnTexts, *messages: Message) -> bool:
    """True if the template prints all of the messages behind a reply."""
    return _prints(lambda: texts.native_answer(_SAID, messages), messages)


def _prints(render: Callable[[], Observed], messages: Sequence[Message]) -> bool:
    with suppress(RenderingError):
        text = render().text
        return all(message.content in text for message in messages)
    return False


def _is_positional(texts: TurnTexts) -> bool:
    positional = TurnTexts(texts.template, replace(texts.traits, positional=True))
    try:
        found = [
            positional.native_answer(_SAID, (_SECOND,), before=before)
            for before in ((_FIRST,), (_FIRST, _SAID, _SECOND), (_FIRST, _SAID, _SECOND) * 2)
        ]
    except RenderingError:
        return False
    return len(set(found)) > 1


def _prints_calls(template: ChatTemplate, traits: TemplateTraits, *, says: bool, several: bool) -> bool:
    """True if a reply of that shape and the results of its calls show all that they hold."""
    count = 1 + several
    message = Message("assistant", _SAID.content if says else "", _CALLS[:count])
    texts = TurnTexts(template, traits)
    try:
        said = texts.reply_with_calls(message)
        answered = texts.native_answer(message, _RESULTS[:count]).text
    except RenderingError:
        return False
    words = [word for of_call in _WORDS_OF_CALLS[:count] for word in of_call[:3]]
    results = [of_call[3] for of_call in _WORDS_OF_CALLS[:count]]
    return (
        all(word in said for word in words)
        and (_SAID.content in said or not says)
        and all(result in answered for result in results)
    )
