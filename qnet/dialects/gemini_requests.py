"""Requests of Gemini's generateContent, from those of chat completions. Pure.

How callers' requests in this dialect are read is in `qguide.server.gemini.translation`.

Gemini 3 refuses a call in a history without the signature of the thought before it. Chats carry it
in `extra_content`, as Google's own chat completions do. Callers of other dialects lose it, and calls
of other models never had one: such calls get the words by which Google lets them pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from mimetypes import guess_type
from typing import Any, Final

from qguide.qnet.dialects.anthropic_requests import allowed_functions, function_of, written_input
from qguide.qnet.dialects.shapes import CHATS_ALONE, EFFORTLESS, Json, image_address, passed_on, turns_of
from qguide.qnet.errors import InvalidRequestError

GENERATE: Final = "generateContent"
COUNT: Final = "countTokens"
EXTRA: Final = "extra_content"
"""Field of a chat's message or call that has Google's own fields."""
UNSIGNED: Final = "skip_thought_signature_validator"
"""Google's words for a call without a signature."""
_SIGNED_FROM: Final = ("gemini-1", "gemini-2")  # models that want no signatures
_BUDGETS: Final = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24_576}
"""Google's own translation of efforts for models whose thoughts have a budget."""
_LEVELS: Final = {"medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""Levels of efforts for the others, which is `low` for those not named."""
_TOOL_MODES: Final = {"auto": "AUTO", "required": "ANY", "none": "NONE"}
_MOST_STOPS: Final = 5
_OPENING: Final[Json] = {"role": "user", "parts": [{"text": "(no message yet)"}]}
"""Put first where nobody or the assistant has spoken first: a call follows a user's turn."""
_SAMPLING: Final = {
    "n": "candidateCount",
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "seed": "seed",
    "frequency_penalty": "frequencyPenalty",
    "presence_penalty": "presencePenalty",
}
"""Parameters of chats that this dialect calls otherwise, in `generationConfig`."""
JSON_TYPE: Final = "application/json"
_BESIDE: Final = ("model", "messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens")
_WITHOUT_EFFECT: Final = frozenset(
    (
        *("logprobs", "top_logprobs", "parallel_tool_calls", "prediction", "prompt_cache_key"),
        *("prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier", "store"),
        *("stream_options", "user", "metadata", "verbosity"),
    )
)
_UNKNOWN: Final = CHATS_ALONE - _SAMPLING.keys()


def placed(path: str, body: Json) -> tuple[str, Json]:
    """Path and content of a request: the path names the model, the method, and that it is to be a stream."""
    content = {name: value for name, value in body.items() if name not in ("model", "stream")}
    model = str(body["model"])
    model = model if "/" in model else f"models/{model}"
    if path == COUNT:
        content = {"generateContentRequest": {"model": model, **content}}
    elif body.get("stream"):
        path = "streamGenerateContent?alt=sse"
    return f"{model}:{path}", content


def request_of(chat: Json, native: Mapping[str, Any] | None = None) -> Json:
    """The request for the same as a chat's, with a `native` prompt as it came; `placed` takes its model out again."""
    own = {_SAMPLING[name]: chat[name] for name in ("n", "temperature", "seed") if chat.get(name) is not None}
    if longest := chat.get("max_completion_tokens") or chat.get("max_tokens"):
        own["maxOutputTokens"] = longest
    if native is None:
        config, others = _parameters(chat)
        body = {**_prompt(chat["messages"], signs=_signs(chat["model"])), **_tools(chat), **others}
    else:
        body, config = {**native}, native.get("generationConfig") or {}
    return {**body, "model": chat["model"], **({"generationConfig": config | own} if config or own else {})}


def _signs(model: str) -> bool:
    return not model.rpartition("/")[2].startswith(_SIGNED_FROM)


def _prompt(rows: Sequence[Mapping[str, Any]], *, signs: bool) -> Json:
    names: dict[str, str] = {}

    def parts_of(row: Mapping[str, Any]) -> list[Json]:
        parts = [*_result(row, names)] if row["role"] in ("tool", "function") else [*_parts(row)]
        calls = [*_calls(row, names)]
        if calls and signs and not any("thoughtSignature" in part for part in calls):
            calls[0]["thoughtSignature"] = UNSIGNED  # of calls at once only the first has one
        return parts + calls

    instructions, contents = turns_of(rows, parts_of, assistant="model", field="parts")
    if not contents or contents[0]["role"] == "model":
        contents.insert(0, _OPENING)
    said = [part for row in instructions for part in _parts(row)]
    return {"contents": contents, **({"systemInstruction": {"parts": said}} if said else {})}


def _parts(row: Mapping[str, Any]) -> Iterator[Json]:
    """Texts and files; those without text are left out. The last text has the message's signature."""
    content = row.get("content") or row.get("refusal") or ""
    given: list[Json] = content if isinstance(content, list) else [{"type": "text", "text": content}]
    parts = [_part(part) for part in given if part.get("text") != ""]
    for part in parts[:-1]:
        yield part
    for part in parts[-1:]:
        yield part | _signature(row) if "text" in part else part


def _part(part: Mapping[str, Any]) -> Json:
    match part:
        case {"type": "text" | "refusal" as kind}:
            return {"text": part.get(kind) or ""}
        case {"type": "image_url"}:
            return _file(image_address(part), "image/jpeg")
        case {"type": "file", "file": {"file_data": str(data)}}:
            return _file(data, "application/pdf")
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(format_)}}:
            return {"inlineData": {"mimeType": f"audio/{format_}", "data": data}}
    raise InvalidRequestError(
        f"a message has a part of type {str(part.get('type'))[:40]!r}, which an upstream of the dialect 'gemini' "
        "cannot be sent; send text, image_url, input_audio or file_data"
    )


def _file(address: str, mime_type: str) -> Json:
    head, comma, data = address.partition(";base64,")
    if head.startswith("data:") and comma:
        return {"inlineData": {"mimeType": head.removeprefix("data:"), "data": data}}
    return {"fileData": {"fileUri": address, "mimeType": guess_type(address)[0] or mime_type}}


def _result(row: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[Json]:
    """The result of a call, by its name, and what else is in it."""
    call_id = row.get("tool_call_id") or ""
    parts = [*_parts(row)]
    text = "\n".join(part["text"] for part in parts if "text" in part)
    name = names.get(call_id) or row.get("name") or call_id
    of_call = {"id": call_id} if call_id else {}
    yield {"functionResponse": {**of_call, "name": name, "response": {"output": text}}}
    yield from (part for part in parts if "text" not in part)


def _calls(row: Mapping[str, Any], names: dict[str, str]) -> Iterator[Json]:
    """The calls of a turn; their names are noted for the results."""
    for call in row.get("tool_calls") or ():
        function = function_of(call, "gemini")
        call_id = call.get("id") or ""
        names[call_id] = function["name"]
        of_call = {"id": call_id} if call_id else {}
        yield {"functionCall": {**of_call, "name": function["name"], "args": written_input(function)}} | _signature(
            call
        )


def _signature(given: Mapping[str, Any]) -> Json:
    """The signature of a thought, as Google's chat completions carry it."""
    match given.get(EXTRA):
        case {"google": {"thought_signature": str(signature)}} if signature:
            return {"thoughtSignature": signature}
    return {}


def _tools(chat: Mapping[str, Any]) -> Json:
    if not (tools := chat.get("tools")):
        return {}
    functions: Sequence[Mapping[str, Any]] = [function_of(tool, "gemini") for tool in tools]
    choice, names = chat.get("tool_choice"), []
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        functions, choice = allowed_functions(functions, choice.get("allowed_tools"))
    elif isinstance(choice, Mapping):
        names, choice = [function_of(choice, "gemini")["name"]], "required"
    declared = [_declared(function) for function in functions]
    said: Json = {"tools": [{"functionDeclarations": declared}]}
    if choice is not None:
        allowed = {"allowedFunctionNames": names} if names else {}
        mode = _TOOL_MODES.get(str(choice), "AUTO")
        said["toolConfig"] = {"functionCallingConfig": {"mode": mode, **allowed}}
    return said


def _declared(function: Mapping[str, Any]) -> Json:
    told = {"description": said} if (said := function.get("description")) else {}
    schema = {"parametersJsonSchema": schema} if (schema := function.get("parameters")) else {}
    return {"name": function["name"], **told, **schema}


def _parameters(chat: Mapping[str, Any]) -> tuple[Json, Json]:
    """The parameters as `generationConfig`, and those that have no name in it, which Gemini refuses by theirs."""
    parameters = {name: value for name, value in chat.items() if name not in _BESIDE}
    given = passed_on(parameters, "gemini", without_effect=_WITHOUT_EFFECT, unknown=_UNKNOWN)
    config: Json = {said: given.pop(name) for name, said in _SAMPLING.items() if name in given}
    if stop := given.pop("stop", None):
        config["stopSequences"] = ([stop] if isinstance(stop, str) else list(stop))[:_MOST_STOPS]
    match given.pop("response_format", None):
        case {"type": "json_schema", "json_schema": {"schema": Mapping() as schema}}:
            config |= {"responseMimeType": JSON_TYPE, "responseJsonSchema": schema}
        case {"type": "json_object"}:
            config["responseMimeType"] = JSON_TYPE
    if thinking := _thinking(chat["model"], given.pop("reasoning_effort", None), given.pop("reasoning", None)):
        config["thinkingConfig"] = thinking
    return config, given


def _thinking(model: str, effort: str | None, reasoning: object) -> Json:
    """Effort of thoughts as a level, or as a budget for models before Gemini 3, and whether they are shown."""
    shown = bool(effort or reasoning) and effort not in EFFORTLESS[1:]
    said: Json = {"includeThoughts": True} if shown else {}
    if effort is None:
        return said
    if _signs(model):
        return said | {"thinkingLevel": _LEVELS.get(effort, "low")}
    return said | {"thinkingBudget": _BUDGETS.get(effort, _BUDGETS["high"])}
