"""Reference page of the chat templates covered by the renderer's contract suite."""

from typing import Final

from qguide.qnet.errors import RenderingError
from qguide.qnet.rendering.chat_template import CallShape, TemplateTraits
from qguide.qnet.rendering.renderer import Renderer
from qguide.qnet.types import Message
from tests.support.chat_templates import OWN_TEMPLATES, tokenizer_of, trl_templates
from tools.reference_pages.markdown import code, page, table

_INTRODUCTION: Final = (
    "The contract suite (`tests/contract/rendering`) renders conversations with these chat "
    "templates: those that trl carries, and small ones in the manner of other families, which "
    "share what is peculiar to them and nothing else. For each of them a state with its action is "
    "a prefix of every later state, and SFT, Q training and serving make the same tokens."
)
_COLUMNS: Final = (
    "System: *own turn*, *first user turn* where the template puts it there, *folded* where the "
    "renderer does because the template refuses or loses it. Thinking: whether "
    "`<think>…</think>` stays in a finished turn. Tools: *template* where it prints every call "
    "with its result, *text* where calls are lines `Action: name({…})` and results are a user's "
    "turns, else the shapes that the template prints; the others are text."
)
_SHAPES: Final[dict[CallShape, str]] = {
    (False, False): "one call",
    (True, False): "text and a call",
    (False, True): "several calls",
    (True, True): "text and several calls",
}
_SPOKEN: Final = (
    Message("system", "Be brief."),
    Message("user", "Find it."),
    Message("assistant", "open drawer 1"),
    Message("user", "It is open."),
)


def templates_page() -> str:
    """Table of the template families."""
    header = ("family", "renders", "system", "thinking", "tools")
    of_trl = [_row(name, template) for name, template in trl_templates().items()]
    own = [_row(name, template) for name, template in OWN_TEMPLATES.items()]
    return page(
        "Chat templates",
        _INTRODUCTION,
        _COLUMNS,
        "## Templates in trl",
        table(header, [(code(name), *row) for name, *row in of_trl]),
        "## Templates in the manner of other families",
        table(header, own),
    )


def _row(family: str, template: str) -> tuple[str, ...]:
    try:
        renderer = Renderer(tokenizer_of(family, template))
        renderer.encode_history(_SPOKEN)
    except RenderingError as error:
        return family, f"no: {error}", "", "", ""
    traits = renderer.traits
    return family, "yes", traits.system, traits.thinking, _tools(traits)


def _tools(traits: TemplateTraits) -> str:
    if not traits.call_styles:
        return "text"
    if len(traits.call_styles) == len(_SHAPES):
        return "template"
    return ", ".join(name for shape, name in _SHAPES.items() if shape in traits.call_styles)
