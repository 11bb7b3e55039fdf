"""Conversion of tools and of the choice between them to those of chat completions."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from qnet.errors import InvalidRequestError, UnsupportedParameterError
from server.responses.schemas import Tool

_KINDS: Final = ("function", "custom")
_MODES: Final = ("none", "auto", "required")


def to_chat_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools, nested as chat completions have them.

    Raises:
        InvalidRequestError: a tool has no name.
        UnsupportedParameterError: a tool that OpenAI's servers run themselves.
    """
    return [_to_chat_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def _to_chat_tool(tool: Tool, place: str) -> dict[str, Any]:
    if tool.type not in _KINDS:
        _refuse(place, tool.type, "tools")
    if not tool.name:
        raise InvalidRequestError(f"{place} ({tool.type}) has no name; send it")
    if tool.type == "custom":
        fields: dict[str, Any] = {"name": tool.name}
        if tool.description is not None:
            fields["description"] = tool.description
        if tool.format:
            fields["format"] = _grammar(tool.format)
        return {"type": "custom", "custom": fields}
    given = tool.model_dump(exclude_none=True)
    kept = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: given[name] for name in kept if name in given}}


def _grammar(format_: Mapping[str, Any]) -> dict[str, Any]:
    if format_.get("type") != "grammar":
        return dict(format_)
    rules = {name: value for name, value in format_.items() if name != "type"}
    return {"type": "grammar", "grammar": rules}


def to_chat_choice(choice: str | Mapping[str, Any]) -> str | dict[str, Any]:
    """The choice between tools, as chat completions have it.

    Raises:
        UnsupportedParameterError: it is unknown, or names a tool that OpenAI's servers run.
    """
    match choice:
        case str() if choice in _MODES:
            return choice
        case {"type": "function" | "custom" as kind, "name": str(name)}:
            return {"type": kind, kind: {"name": name}}
        case {"type": "allowed_tools", "mode": str(mode), "tools": list(tools)}:
            allowed = [to_chat_choice(tool) for tool in tools if isinstance(tool, dict)]
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}
        case str():
            _refuse("tool_choice", choice, "tool_choice")
    _refuse("tool_choice", str(choice.get("type")), "tool_choice")


def _refuse(place: str, kind: str, parameter: str) -> NoReturn:
    raise UnsupportedParameterError(
        f"{place} is {kind[:40]!r}, which this server cannot run; send tools of the types "
        f"{' and '.join(_KINDS)}, which the caller runs",
        parameter=parameter,
    )
