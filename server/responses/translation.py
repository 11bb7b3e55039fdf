"""Translation of a Responses request, its tools among it, to a guided step. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from qguide.qnet.dialects.responses_answers import OWN_CALLS
from qguide.qnet.dialects.responses_requests import to_turns
from qguide.qnet.dialects.shapes import ASKED, chat_name
from qguide.qnet.errors import InvalidRequestError, UnsupportedParameterError
from qguide.qnet.types import DEFAULT_TEMPERATURE
from qguide.server.chat.schemas import ChatCompletionRequest, GuidanceOptions, chat_request_of
from qguide.server.chat.translation import read_request as read_chat_request
from qguide.server.guidance.step_types import GuidedStepRequest
from qguide.server.q_models.served import ServedPolicy
from qguide.server.responses.compaction import check_readable
from qguide.server.responses.schemas import CallersTool, ResponsesRequest, TextFormat, Tool
from qguide.server.settings.settings import Settings

_STATEFUL: Final = {
    "previous_response_id": "send the items of the earlier responses in `input`",
    "conversation": "send the conversation's items in `input`",
    "prompt": "send the prompt's text as `instructions` or in `input`",
    "context_management": "shorten `input` by `POST /v1/responses/compact`",
    "moderation": "leave it out",
}
"""Parameters for which a server has to keep something or to do something else, and the remedy."""
_OF_CHATS: Final = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "n": "qguide.num_candidates",
    "response_format": "text.format",
}
"""Parameters of chat completions that the Responses API calls otherwise."""
_SHARED: Final = (
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
)
"""Parameters that chat completions call the same."""
_UPSTREAM_TEMPERATURE: Final = 1.0  # OpenAI's default; what another upstream's is, its answers do not say


def read_request(
    body: ResponsesRequest, options: GuidanceOptions, policy: ServedPolicy, settings: Settings
) -> GuidedStepRequest:
    """Translate a Responses request to the request for a guided step."""
    if policy.dialect != "responses":
        check_readable(body)
    return read_chat_request(to_chat_request(body), options, policy, settings, names=_OF_CHATS)


def to_chat_request(body: ResponsesRequest) -> ChatCompletionRequest:
    """The chat completion request that asks for the same answer."""
    _check(body)
    return chat_request_of(
        body.parameters
        | {
            "messages": to_turns(body.instructions, body.input),
            "temperature": body.temperature,
            "max_tokens": body.max_output_tokens,
            **_tool_parameters(body),
            **_other_parameters(body),
        }
    )


def temperature_of(step: GuidedStepRequest) -> float:
    """The temperature at which the candidates are drawn."""
    if step.sampling.temperature is not None:
        return step.sampling.temperature
    in_process = step.policy.upstream_model is None
    return DEFAULT_TEMPERATURE if in_process else _UPSTREAM_TEMPERATURE


def _check(body: ResponsesRequest) -> None:
    given = body.model_dump(include={*_STATEFUL}) | (body.model_extra or {})
    for name, remedy in _STATEFUL.items():
        if given.get(name):
            raise UnsupportedParameterError(
                f"{name} is not supported: this server answers each request from its body alone and stores no "
                f"responses; {remedy}",
                parameter=name,
            )
    for name, other in _OF_CHATS.items():
        if given.get(name) is not None:
            raise UnsupportedParameterError(f"{name} is a parameter of chat completions; send {other}", parameter=name)


def _tool_parameters(body: ResponsesRequest) -> dict[str, Any]:
    """Tools and how to call them; without tools upstreams refuse the rest, so it is left out."""
    choice = None if body.tool_choice is None else to_chat_choice(body.tool_choice)
    if not body.tools:
        return {}
    parameters: dict[str, Any] = {"tools": to_chat_tools(body.tools)}
    if choice is not None:
        parameters["tool_choice"] = choice
    if body.parallel_tool_calls is not None:
        parameters["parallel_tool_calls"] = body.parallel_tool_calls
    return parameters


def _other_parameters(body: ResponsesRequest) -> dict[str, Any]:
    text = body.text
    given = {
        **{name: getattr(body, name) for name in _SHARED},
        "reasoning_effort": body.reasoning and body.reasoning.effort,
        **(ASKED if body.reasoning and body.reasoning.summary else {}),
        "verbosity": text and text.verbosity,
        "response_format": text and text.format and _response_format(text.format),
        "logprobs": body.wants_logprobs or None,
        "top_logprobs": body.top_logprobs or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _response_format(format_: TextFormat) -> dict[str, Any] | None:
    """OpenAI's `response_format`; None for plain text, which is what a chat answers anyway."""
    if format_.type == "text":
        return None
    given = format_.model_dump(exclude_none=True)
    kind = given.pop("type")
    return {"type": kind, kind: given} if given else {"type": kind}


_KINDS: Final = ("function", "custom")
_NAMESPACE: Final = "namespace"
_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"type": "array", "items": _TEXT, "minItems": 1}
_INTEGER: Final = {"type": "integer"}
_LIMITS: Final = {"timeout_ms": _INTEGER}


def _fields(*needed: str, **fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": [*needed]}


_KEYS: Final = {"type": "array", "items": _TEXT}
_POINT: Final = {"x": _INTEGER, "y": _INTEGER}
_ACTIONS: Final = ("click", "double_click", "drag", "keypress", "move", "screenshot", "scroll", "type", "wait")
_ACTION: Final = _fields(
    "type",
    type={"type": "string", "enum": list(_ACTIONS)},
    **_POINT,
    button={"type": "string", "enum": ["left", "right", "wheel", "back", "forward"]},
    keys=_KEYS,
    path={"type": "array", "items": _fields("x", "y", **_POINT)},
    scroll_x=_INTEGER,
    scroll_y=_INTEGER,
    text=_TEXT,
)
_COMPUTER: Final = (
    "Acts on a computer, and answers with a screenshot. click has x, y and button; double_click, move and scroll x and "
    "y, scroll also scroll_x and scroll_y; drag a path; keypress keys; type text; keys are held during the others."
)
_OWN_TOOLS: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "shell": ("Runs commands in a shell.", _fields("commands", commands=_TEXTS, max_output_length=_INTEGER, **_LIMITS)),
    "local_shell": (
        "Runs a command, given as its arguments.",
        _fields("command", command=_TEXTS, working_directory=_TEXT, user=_TEXT, **_LIMITS),
    ),
    "apply_patch": (
        "Creates, updates or deletes a file; the diff has lines that begin with a space, + or -.",
        _fields(
            "type",
            "path",
            type={"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            path=_TEXT,
            diff=_TEXT,
        ),
    ),
    "computer": (_COMPUTER, _fields("actions", actions={"type": "array", "items": _ACTION, "minItems": 1})),
    "computer_use_preview": (_COMPUTER, _ACTION),
}
"""Descriptions of OpenAI's tools that the caller runs, and their arguments."""
_OF_FUNCTIONS: Final = ("description", "parameters", "strict")
_MODES: Final = ("none", "auto", "required")


def called_names(tools: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Names of calls by the tool's name in a chat; of OpenAI's own tools the type."""
    own = {tool["type"]: {"type": tool["type"]} for tool in tools if tool["type"] in OWN_CALLS}
    return own | {
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
    return [_to_chat_tool(inner, f"{place}.tools[{index}]", tool.name) for index, inner in enumerate(tool.tools)]


def _to_chat_tool(tool: CallersTool, place: str, namespace: str | None = None) -> dict[str, Any]:
    if tool.type in OWN_CALLS:
        return _own_tool(tool, place)
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


def _own_tool(tool: CallersTool, place: str) -> dict[str, Any]:
    where = (tool.model_extra or {}).get("environment")
    if isinstance(where, Mapping) and where.get("type") != "local":
        _refuse(f"{place}.environment", str(where.get("type")), "tools")
    description, parameters = _OWN_TOOLS[tool.type]
    if screen := _screen(tool.model_extra or {}):
        description += f" {screen}"
    function = {"name": tool.type, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _screen(said: Mapping[str, Any]) -> str:
    match said:
        case {"display_width": int(width), "display_height": int(height), **more}:
            return f"Its display ({more.get('environment') or 'computer'}) has {width} by {height} pixels."
    return ""


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
        case {"type": str(kind)} if kind in OWN_CALLS:
            return {"type": "function", "function": {"name": kind}}
        case {"type": "allowed_tools", "mode": str(mode), "tools": list(tools)}:
            allowed = [to_chat_choice(tool) for tool in tools if isinstance(tool, dict)]
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}
        case str():
            _refuse("tool_choice", choice, "tool_choice")
    _refuse("tool_choice", str(choice.get("type")), "tool_choice")


def _refuse(place: str, kind: str, parameter: str) -> NoReturn:
    raise UnsupportedParameterError(
        f"{place} is {kind[:40]!r}, which this server cannot run; send tools that the caller runs: "
        f"{', '.join((*_KINDS, *OWN_CALLS))}, alone or in a namespace",
        parameter=parameter,
    )
