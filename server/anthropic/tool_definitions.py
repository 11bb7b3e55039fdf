"""Anthropic's tools that the caller runs, as functions that any upstream knows. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from qguide.qnet.dialects.shapes import Json, chat_name, is_strict
from qguide.qnet.errors import MalformedHistoryError, UnsupportedParameterError
from qguide.server.anthropic.schemas import AnthropicTool

_CALLERS: Final = ("bash_", "text_editor_", "computer_", "memory_")
"""Types of tools that Anthropic defines and the caller runs, without their dates."""


def _chosen(by: str, choices: str, fields: Json, *also: str) -> Json:
    """Schema of a tool whose field `by` says what it does."""
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
    "key type mouse_move left_click left_click_drag right_click middle_click double_click screenshot cursor_position"
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
        _chosen("command", f"{_COMMANDS} delete rename", _EDITS | {"old_path": _TEXT, "new_path": _TEXT}),
    ),
    "computer_20241022": (_SCREEN, _chosen("action", _CLICKS, _AT)),
    _HAS_NO_ZOOM: (_SCREEN, _chosen("action", _HOLDS, _MOVED)),
    _ZOOMS: (_SCREEN, _chosen("action", f"{_HOLDS} zoom", _MOVED | {"region": _CORNERS})),
}
"""Description and input of these tools as Anthropic documents them, by the start of the type."""
_TAB: Final[Json] = {"tab_id": _TEXT | {"description": "the active tab if it is left out"}}
_REF: Final[Json] = {
    "type": "object",
    "properties": {"type": {"const": "ref"}, "ref": _TEXT | {"description": "as in ref_7"}},
    "required": ["type", "ref"],
}
_POINT: Final[Json] = {
    "type": "object",
    "properties": {"type": {"const": "coordinate"}, "x": _NUMBER, "y": _NUMBER},
    "required": ["type", "x", "y"],
}
_OF_MEMBERS: Final[Json] = {
    **_MOVED,
    **_TAB,
    "start_coordinate": _PAIR,
    "duration": {"type": "number", "description": "in seconds"},
    "region": _CORNERS | {"description": "x and y of the upper left and the lower right corner"},
    "repeat": _NUMBER,
    "url": _TEXT | {"description": "or `back`, `forward`, `reload`"},
    "query": _TEXT | {"description": "the elements, in words"},
    "ref": _TEXT,
    "depth": _NUMBER,
    "filter": {"type": "string", "enum": ["all", "interactive"]},
    "value": {"type": ["string", "number", "boolean"]},
    "modifiers": _TEXT | {"description": "keys that are held, as in ctrl+shift"},
    "paths": {"type": "array", "items": _TEXT},
    "target": {"anyOf": [_POINT, _REF]},
    "point": _POINT,
    "from": _POINT,
    "element": _REF,
}
_RENAMED: Final = {"point": "target", "element": "target"}
_OPTIONAL: Final = frozenset(("tab_id", "text", "coordinate", "depth", "filter", "ref", "repeat", "modifiers"))
_MEMBERS: Final[Mapping[str, Mapping[str, str]]] = {
    "browser_toolset_20260801": {
        **dict.fromkeys(("get_page_text", "screenshot"), "tab_id"),
        **dict.fromkeys(("list_tabs", "new_tab"), ""),
        **dict.fromkeys(("switch_tab", "close_tab"), "tab_id!"),
        **dict.fromkeys(("left_mouse_down", "left_mouse_up", "mouse_move"), "point tab_id"),
        **dict.fromkeys(
            ("left_click", "right_click", "middle_click", "double_click", "triple_click"), "target modifiers tab_id"
        ),
        "navigate": "url tab_id",
        "read_page": "ref depth filter tab_id",
        "find": "query tab_id",
        "form_input": "element value tab_id",
        "scroll_to": "element tab_id",
        "zoom": "region tab_id",
        "hover": "target tab_id",
        "left_click_drag": "from point tab_id",
        "scroll": "point scroll_direction scroll_amount tab_id",
        "type": "text! tab_id",
        "key": "text! repeat tab_id",
        "hold_key": "text! duration tab_id",
        "wait": "duration tab_id",
        "file_upload": "element paths tab_id",
        "javascript_exec": "text! tab_id",
        **dict.fromkeys(("read_console", "read_network"), "tab_id"),
    },
    "computer_toolset_20260801": {
        **dict.fromkeys(("screenshot", "cursor_position", "left_mouse_down", "left_mouse_up"), ""),
        **dict.fromkeys(
            ("left_click", "right_click", "middle_click", "double_click", "triple_click"), "coordinate text"
        ),
        "left_click_drag": "start_coordinate coordinate! text",
        "mouse_move": "coordinate!",
        "scroll": "scroll_direction scroll_amount coordinate text",
        "type": "text!",
        "key": "text! repeat",
        "hold_key": "text! duration",
        "wait": "duration",
        "zoom": "region",
    },
}
"""Tools of Anthropic's toolsets, with the names of their fields; `!` marks one that is needed here and elsewhere is
not."""
_OFF: Final = frozenset(("file_upload", "javascript_exec", "read_console", "read_network"))
"""Tools of a toolset that a caller has to switch on."""
_SIZES: Final = ("display_width_px", "display_height_px")


def read_tools(tools: Sequence[AnthropicTool], found: Collection[str]) -> list[Json]:
    """The functions that are these tools, and the tools of toolsets.

    Args:
        found: names of deferred tools that a search has found; the others are left out.
    """
    read: list[Json] = []
    for i, tool in enumerate(tools):
        if toolset_of(tool):
            read += _members(tool, found)
        else:
            function = _tool(tool, f"tools[{i}]")
            read += [] if tool.defer_loading and tool.name not in found else [function]
    return read


def toolset_of(tool: AnthropicTool) -> str:
    """Name of the toolset that the tool stands for; "" for an ordinary tool."""
    family, found, _ = (tool.type or "").partition("_toolset_")
    return family if found else ""


def _members(tool: AnthropicTool, found: Collection[str]) -> Iterator[Json]:
    """The functions of a toolset that are switched on, each named after the toolset, too."""
    configs = tool.configs or {}
    for member, fields in _MEMBERS.get(tool.type or "", {}).items():
        config = configs.get(member)
        config = config if isinstance(config, Mapping) else {}
        enabled, deferred = config.get("enabled"), config.get("defer_loading")
        if enabled is False or (enabled is None and member in _OFF):
            continue
        if deferred and member not in found:
            continue
        names = [name.removesuffix("!") for name in fields.split()]
        needed = [_RENAMED.get(n, n) for n in names if f"{n}!" in fields or n not in _OPTIONAL]
        schema = {_RENAMED.get(name, name): _OF_MEMBERS[name] for name in names}
        parameters = {"type": "object", "properties": schema, "required": needed}
        function = {"name": chat_name(member, toolset_of(tool)), "parameters": parameters}
        yield {"type": "function", "function": function}


def _tool(tool: AnthropicTool, place: str) -> Json:
    """The function that is the tool; one that Anthropic defines is described as documented.

    What Anthropic itself runs is refused: its results would not be the candidate's.
    """
    if not _is_custom(tool) and not (tool.type or "").startswith(_CALLERS):
        raise _foreign_tool(tool, place)
    if not tool.name:
        raise MalformedHistoryError(f"{place}.name is missing; only a toolset has none")
    described = _documented(tool) or {"parameters": {"type": "object"}}
    parameters = tool.input_schema or described["parameters"]
    function = described | {
        "name": tool.name,
        "description": tool.description or described.get("description"),
        "parameters": parameters,
        # OpenAI's strict tools have no optional parameters, Anthropic's may have some.
        "strict": tool.strict if not tool.strict or is_strict(parameters) else None,
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


def require_known_tools(tools: Sequence[AnthropicTool]) -> None:
    """Refuse tools that only an upstream of Anthropic's dialect knows."""
    for i, tool in enumerate(tools):
        known = tool.type in _MEMBERS if toolset_of(tool) else _documented(tool) is not None
        if not _is_custom(tool) and not known:
            raise _foreign_tool(tool, f"tools[{i}]")


def _is_custom(tool: AnthropicTool) -> bool:
    return tool.input_schema is not None and tool.type in (None, "custom")


def _foreign_tool(tool: AnthropicTool, place: str) -> UnsupportedParameterError:
    if tool.type in (None, "custom", "function"):
        return UnsupportedParameterError(
            f'{place} ({tool.name!r}) is none of this API: send {{"name": …, "description": …, "input_schema": …}}, '
            "without OpenAI's `function` around it",
            parameter="tools",
        )
    return UnsupportedParameterError(
        f"{place} ({tool.name!r}, type {tool.type[:40]!r}) is no custom tool with an input_schema: of "
        "the tools that Anthropic defines, those that Anthropic runs no upstream has, and newer ones that the caller "
        "runs need an upstream of the dialect 'messages'; describe it by an input_schema alone or remove it",
        parameter="tools",
    )
