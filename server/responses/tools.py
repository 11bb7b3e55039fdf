"""Conversion of tools and of the choice between them to those of chat completions."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from qguide.qnet.dialects.responses_requests import chat_name
from qguide.qnet.errors import InvalidRequestError, UnsupportedParameterError
from qguide.server.responses.schemas import CallersTool, Tool

_KINDS: Final = ("function", "custom")
_NAMESPACE: Final = "namespace"
_OF_FUNCTIONS: Final = ("description", "parameters", "strict")
_MODES: Final = ("none", "auto", "required")


def called_names(tools: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Name and namespace of each tool in a namespace, by its name in a chat."""
    return {
        chat_name(tool["name"], group["name"]): {"name": tool["name"], "namespace": group["name"]}
        for group in tools
        if group["type"] == _NAMESPACE
        for tool in group["tools"]
    }


def to_chat_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools, nested as in chat completions; those of namespaces stand beside the others."""
    return [found for index, tool in enumerate(tools) for found in _found(tool, f"tools[{index}]")]


def _found(tool: Tool, place: str) -> list[dict[str, Any]]:
    if tool.type != _NAMESPACE:
        return [_to_chat_tool(tool, place)]
    if not tool.name or tool.tools is None:
        raise InvalidRequestError(f"{place} ({tool.type}) needs a name and tools; send both")
    return [
        _to_chat_tool(inner, f"{place}.tools[{index}]", tool.name)
        for index, inner in enumerate(tool.tools)
    ]


def _to_chat_tool(tool: CallersTool, place: str, namespace: str | None = None) -> dict[str, Any]:
    if tool.type not in _KINDS:
        _refuse(place, tool.type, "tools")
    if not tool.name:
        raise InvalidRequestError(f"{place} ({tool.type}) has no name; send it")
    name = {"name": chat_name(tool.name, namespace)}
    if tool.type == "custom":
        fields: dict[str, Any] = {**name}
        if tool.description is not None:
            fields["description"] = tool.description
        if tool.format:
            fields["format"] = _grammar(tool.format)
        return {"type": "custom", "custom": fields}
    given = tool.model_dump(exclude_none=True)
    kept = {field: given[field] for field in _OF_FUNCTIONS if field in given}
    return {"type": "function", "function": name | kept}


def _grammar(format_: Mapping[str, Any]) -> dict[str, Any]:
    if format_.get("type") != "grammar":
        return dict(format_)
    rules = {name: value for name, value in format_.items() if name != "type"}
    return {"type": "grammar", "grammar": rules}


def to_chat_choice(choice: str | Mapping[str, Any]) -> str | dict[str, Any]:
    """The choice between tools, as chat completions have it."""
    match choice:
        case str() if choice in _MODES:
            return choice
        case {"type": "function" | "custom" as kind, "name": str(name), "namespace": str(space)}:
            return {"type": kind, kind: {"name": chat_name(name, space)}}
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
        f"{' and '.join(_KINDS)}, which the caller runs, alone or in a namespace",
        parameter=parameter,
    )
