"""Translation between Anthropic's messages and chat completions' guided steps. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from qguide.qnet.dialects.messages_answers import message_of
from qguide.qnet.dialects.messages_requests import THINKING, chat_turns, thoughts_field
from qguide.qnet.dialects.shapes import Json
from qguide.qnet.errors import InvalidRequestError, UnsupportedParameterError
from qguide.server.anthropic.schemas import (
    AnthropicTool,
    Block,
    MessagesRequest,
    Prompt,
    ToolChoice,
    Turn,
)
from qguide.server.chat.schemas import ChatCompletionRequest, chat_request_of
from qguide.server.settings.allowed_parameters import without_effect

CALLED_HERE: Final = {"stop": "stop_sequences", "response_format": "output_config.format"}
"""Anthropic's names of parameters that a chat completion calls otherwise."""

_WITHOUT_EFFECT: Final = frozenset(
    (
        *("n", "max_completion_tokens", "stream_options"),
        "betas",
        "billing_policy",
        "cache_control",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    )
)
"""Anthropic's parameters that chat completions have not, or with other values, and theirs that an
answer in this dialect has no place for. `mcp_servers` and `container` are refused: whoever sends
them counts on tools that nobody would run."""
_CALLERS: Final = ("bash_", "text_editor_", "computer_", "memory_")
"""Types of tools that Anthropic defines and the caller runs, without their dates."""
_TOOL_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}


def _chosen(by: str, choices: str, fields: Json, *also: str) -> Json:
    """Schema of a tool whose field `by` says what it does.

    Args:
        also: fields that every choice needs.
    """
    chooser = {by: {"type": "string", "enum": choices.split()}}
    return {"type": "object", "properties": chooser | fields, "required": [by, *also]}


def _edited(commands: str, fields: Json) -> tuple[str, Json]:
    return _EDITOR, _chosen("command", commands, fields, "path")


_TEXT: Final[Json] = {"type": "string"}
_NUMBER: Final[Json] = {"type": "integer"}
_PAIR: Final[Json] = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}
_EDITS: Final[Json] = {
    "path": _TEXT,
    "view_range": _PAIR | {"description": "of view: first and last line, -1 for the end"},
    "file_text": _TEXT | {"description": "of create"},
    "old_str": _TEXT | {"description": "of str_replace: occurs exactly once"},
    "new_str": _TEXT | {"description": "of str_replace"},
    "insert_line": _NUMBER | {"description": "of insert: the line after which, 0 for the start"},
    "insert_text": _TEXT | {"description": "of insert"},
}
_OLD_EDITS: Final[Json] = {
    **{name: field for name, field in _EDITS.items() if name != "insert_text"},
    "new_str": _TEXT | {"description": "of str_replace, and of insert"},
}
_AT: Final[Json] = {"coordinate": _PAIR | {"description": "x and y in pixels"}, "text": _TEXT}
_MOVED: Final[Json] = {
    **_AT,
    "start_coordinate": _PAIR | {"description": "of left_click_drag"},
    "scroll_direction": {"type": "string", "enum": ["up", "down", "left", "right"]},
    "scroll_amount": _NUMBER,
    "duration": {"type": "number", "description": "of hold_key and wait, in seconds"},
}
_CORNERS: Final[Json] = {
    "type": "array",
    "items": _NUMBER,
    "description": "of zoom: x and y of the upper left and of the lower right corner",
}
_COMMANDS: Final = "view create str_replace insert"
_CLICKS: Final = (
    "key type mouse_move left_click left_click_drag right_click middle_click double_click "
    "screenshot cursor_position"
)
_HOLDS: Final = f"{_CLICKS} triple_click left_mouse_down left_mouse_up scroll hold_key wait"
_EDITOR: Final = "Views, creates and edits text files."
_SCREEN: Final = "Uses mouse, keyboard and screen."
_ZOOMS, _HAS_NO_ZOOM = "computer_20251124", "computer_20250124"
"""Without `enable_zoom` the first has the input of the second."""
_DOCUMENTED: Final[Mapping[str, tuple[str, Json]]] = {
    "bash_20": (
        "Runs a command in a shell that stays open, or restarts it.",
        {"type": "object", "properties": {"command": _TEXT, "restart": {"type": "boolean"}}},
    ),
    "text_editor_20241022": _edited(f"{_COMMANDS} undo_edit", _OLD_EDITS),
    "text_editor_20250124": _edited(f"{_COMMANDS} undo_edit", _OLD_EDITS),
    "text_editor_20250429": _edited(_COMMANDS, _OLD_EDITS),
    "text_editor_20250728": _edited(_COMMANDS, _EDITS),
    "memory_20250818": (
        "Keeps what is to be remembered in files below /memories.",
        _chosen(
            "command",
            f"{_COMMANDS} delete rename",
            _EDITS | {"old_path": _TEXT, "new_path": _TEXT},
        ),
    ),
    "computer_20241022": (_SCREEN, _chosen("action", _CLICKS, _AT)),
    _HAS_NO_ZOOM: (_SCREEN, _chosen("action", _HOLDS, _MOVED)),
    _ZOOMS: (
        _SCREEN,
        _chosen("action", f"{_HOLDS} zoom", _MOVED | {"region": _CORNERS}),
    ),
}
"""Description and input of these tools as Anthropic documents them, by the start of the type."""
_SIZES: Final = ("display_width_px", "display_height_px")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as a chat completion, and what its answer depends on.

    Attributes:
        stop_sequences: texts that end a candidate.
        thinks: the caller wants the upstream's thoughts as blocks.
        warnings: what could not be passed on, and why.
    """

    chat: ChatCompletionRequest
    stop_sequences: Sequence[str]
    thinks: bool
    warnings: tuple[str, ...]


def read_message(body: MessagesRequest) -> Asked:
    """Translate a request to a chat completion's."""
    chat = chat_prompt(body) | {
        "max_tokens": body.max_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "seed": body.seed,
        "stop": body.stop_sequences or None,
        "response_format": _response_format(body),
        "user": body.metadata and body.metadata.user_id,
    }
    passed_on = {k: v for k, v in body.parameters.items() if k not in _WITHOUT_EFFECT}
    given = {name: value for name, value in chat.items() if value is not None}
    return Asked(
        chat_request_of(passed_on | given),
        body.stop_sequences or (),
        body.thinking is not None and body.thinking.type != "disabled",
        tuple(_warnings(body)),
    )


def chat_prompt(body: Prompt) -> Json:
    """The prompt as fields of a chat completion's body; null where there is nothing."""
    choice = body.tool_choice
    one_call = bool(choice and choice.disable_parallel_tool_use)
    return {
        "model": body.model,
        "messages": chat_turns(body.system, body.messages),
        "tools": _tools(body) or None,
        "tool_choice": choice and _tool_choice(choice),
        "parallel_tool_calls": False if one_call else None,
    }


def _tools(body: Prompt) -> list[Json]:
    """The tools that the model knows of: deferred ones only once a search has found them."""
    found = _referenced_tools(body.messages)
    tools = [(tool, _tool(tool, f"tools[{i}]")) for i, tool in enumerate(body.tools or ())]
    return [read for tool, read in tools if not tool.defer_loading or tool.name in found]


def _tool(tool: AnthropicTool, place: str) -> Json:
    """The function that is the tool; one that Anthropic defines is described as documented.

    What Anthropic itself runs is refused: its results would not be the candidate's.
    """
    if not _is_custom(tool) and not (tool.type or "").startswith(_CALLERS):
        raise _foreign_tool(tool, place)
    described = _documented(tool) or {"parameters": {"type": "object"}}
    function = described | {
        "name": tool.name,
        "description": tool.description or described.get("description"),
        "parameters": tool.input_schema or described["parameters"],
        "strict": tool.strict,
    }
    given = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": given}


def _documented(tool: AnthropicTool) -> Json | None:
    """Description and parameters of a tool that Anthropic defines; None if they are not known."""
    kind = tool.type or ""
    given = tool.model_extra or {}
    if kind.startswith(_ZOOMS) and not given.get("enable_zoom"):
        kind = _HAS_NO_ZOOM
    fitting = (known for name, known in _DOCUMENTED.items() if kind.startswith(name))
    for description, parameters in fitting:
        sizes = [f"{name} is {given[name]}." for name in _SIZES if name in given]
        return {"description": " ".join([description, *sizes]), "parameters": parameters}
    return None


def require_known_tools(body: Prompt) -> None:
    """Refuse tools that only an upstream of Anthropic's dialect knows."""
    for i, tool in enumerate(body.tools or ()):
        if not _is_custom(tool) and _documented(tool) is None:
            raise _foreign_tool(tool, f"tools[{i}]")


def _is_custom(tool: AnthropicTool) -> bool:
    return tool.input_schema is not None and tool.type in (None, "custom")


def _foreign_tool(tool: AnthropicTool, place: str) -> UnsupportedParameterError:
    return UnsupportedParameterError(
        f"{place} ({tool.name!r}, type {(tool.type or 'custom')[:40]!r}) is no custom tool with an "
        "input_schema: of the tools that Anthropic defines, those that Anthropic runs no upstream "
        "has, and newer ones that the caller runs need an upstream of the dialect 'messages'; "
        "describe it by an input_schema alone or remove it",
        parameter="tools",
    )


def _tool_choice(choice: ToolChoice) -> str | Json:
    if choice.type != "tool":
        return _TOOL_CHOICES[choice.type]
    if choice.name is None:
        raise InvalidRequestError("tool_choice has the type 'tool' but no name; name the tool")
    return {"type": "function", "function": {"name": choice.name}}


def _response_format(body: MessagesRequest) -> Json | None:
    format_ = body.output_config and body.output_config.format
    if not format_:
        return None
    schema = {"name": "answer", "schema": format_.schema_, "strict": True}
    return {"type": "json_schema", "json_schema": schema}


def _warnings(body: MessagesRequest) -> list[str]:
    warnings: list[str] = []
    dropped = {*(_WITHOUT_EFFECT & body.parameters.keys())}
    if body.output_config and body.output_config.effort:
        dropped.add("output_config.effort")
    warnings += without_effect(dropped)
    if thoughts := _foreign_thoughts(body.messages):
        warnings.append(
            f"{thoughts} thinking blocks were left out, because no upstream of this server gave "
            "them"
        )
    return warnings


def answer_of(completion: Json, asked: Asked, native: Mapping[str, Any] | None = None) -> Json:
    """The response body: Anthropic's message, extended by `qguide`.

    Args:
        native: the message of an upstream of this dialect.
    """
    message, warnings = message_of(
        completion, thinks=asked.thinks, stop_sequences=asked.stop_sequences, native=native
    )
    guidance = completion["qguide"]
    guidance["warnings"] += [*asked.warnings, *warnings]
    return message | {"qguide": guidance}


def _foreign_thoughts(turns: Sequence[Turn]) -> int:
    """Number of thinking blocks that no upstream of this server gave, so that none gets them."""
    blocks = _blocks(turns)
    return sum(block.type in THINKING and thoughts_field(block) is None for block in blocks)


def _referenced_tools(turns: Sequence[Turn]) -> set[str]:
    """Names of the tools that a search for tools, run by the caller, has found."""
    contents = (block.content for block in _blocks(turns) if isinstance(block.content, list))
    return {part.tool_name for content in contents for part in content if part.tool_name}


def _blocks(turns: Sequence[Turn]) -> Iterator[Block]:
    for turn in turns:
        if not isinstance(turn.content, str):
            yield from turn.content
