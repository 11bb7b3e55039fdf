"""Translation between Gemini's requests and chat completions' guided steps. Pure.

Gemini's calls need no ids: a result belongs to the first open call of its name. A chat completion has an id for each,
so calls without one get their place in the conversation.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic.alias_generators import to_camel

from qguide.qnet.dialects.anthropic_requests import arguments_of
from qguide.qnet.dialects.gemini_answers import OWN_SIGNATURES, content_of
from qguide.qnet.dialects.gemini_requests import JSON_TYPE
from qguide.qnet.dialects.shapes import ASKED, Json, OpenCalls, answer_format, assistant_turn, joined
from qguide.qnet.errors import InvalidRequestError, MalformedHistoryError, UnsupportedParameterError
from qguide.qnet.turns import paced
from qguide.server.chat.schemas import chat_request_of
from qguide.server.chat.translation import Translated
from qguide.server.gemini.schemas import (
    CallingConfig,
    Content,
    FunctionDeclaration,
    GeminiPart,
    GeminiPrompt,
    GeminiResult,
    GenerateContentRequest,
    GenerationConfig,
    ResultPart,
)
from qguide.server.settings.allowed_parameters import without_effect

CALLED_HERE: Final = {
    "stop": "generationConfig.stopSequences",
    "response_format": "generationConfig.responseSchema",
    "tools": "tools",
}
"""Gemini's names of parameters that a chat completion calls otherwise."""

_CONFIG: Final = {
    *(field.alias for field in GenerationConfig.model_fields.values()),
    *("responseLogprobs", "logprobs", "mediaResolution"),
}
_CACHED: Final = frozenset(("cachedContent", "cached_content"))
_MODES: Final = {"ANY": "required", "NONE": "none"}
_NUMBERS: Final = re.compile(r"\d+")
_COUNTS: Final = re.compile(r"(min|max)(Items|Length|Properties)")


def read_content(body: GenerateContentRequest, model: str) -> Translated:
    """Translate a request to a chat completion's."""
    if _CACHED & body.parameters.keys():
        raise UnsupportedParameterError(
            "cachedContent is a part of the prompt that only Google has; send it in contents", parameter="cachedContent"
        )
    config = body.generation_config
    chat = chat_prompt(body, model) | {
        "max_tokens": config.max_output_tokens,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": None if config.top_k is None else int(config.top_k),
        "seed": config.seed,
        "stop": config.stop_sequences or None,
        "presence_penalty": config.presence_penalty,
        "frequency_penalty": config.frequency_penalty,
        "response_format": _response_format(config),
    }
    if config.candidate_count not in (None, 1):
        raise InvalidRequestError(
            f"generationConfig.candidateCount is {config.candidate_count}, but an answer has the best candidate alone; "
            "set qguide.return_candidates to see all that were drawn"
        )
    dropped = {f"generationConfig.{name}" for name in config.model_extra or {}}
    thinking = config.thinking_config
    thinks = bool(thinking and thinking.include_thoughts)
    if thinking and thinking.model_extra:
        dropped |= {f"generationConfig.thinkingConfig.{name}" for name in thinking.model_extra}
    given = {k: v for k, v in chat.items() if v is not None} | (ASKED if thinks else {})
    return Translated(chat_request_of(given), thinks, without_effect(dropped | body.parameters.keys()))


def known_config(given: Mapping[str, Any]) -> tuple[Json, tuple[str, ...]]:
    """Options of the draws that an upstream of this dialect gets, and a warning of the others, which make no text."""
    known = {to_camel(name): value for name, value in given.items() if to_camel(name) in _CONFIG}
    return known, without_effect([f"generationConfig.{n}" for n in given if to_camel(n) not in _CONFIG])


def chat_prompt(body: GeminiPrompt, model: str) -> Json:
    """The prompt as fields of a chat completion's body; null where there is nothing."""
    calling = body.tool_config.function_calling_config if body.tool_config else None
    return {
        "model": model,
        "messages": chat_turns(body.system_instruction, body.contents),
        "tools": _tools(body, calling) or None,
        "tool_choice": _tool_choice(calling) if calling else None,
    }


def _tools(body: GeminiPrompt, calling: CallingConfig | None) -> list[Json]:
    allowed = calling.allowed_function_names if calling else None
    tools = []
    for index, tool in enumerate(body.tools or ()):
        if others := (tool.model_extra or {}).keys():
            raise UnsupportedParameterError(
                f"tools[{index}] has {sorted(others)[0][:40]!r}: upstreams know no tools that Google runs; remove it, "
                "or describe your own function in functionDeclarations",
                parameter="tools",
            )
        tools += [
            {"type": "function", "function": _function(declared)}
            for declared in tool.function_declarations or ()
            if not allowed or declared.name in allowed
        ]
    if allowed and not tools:
        raise InvalidRequestError(
            f"toolConfig allows {allowed[0][:40]!r}, which no tool declares; name functions of functionDeclarations in "
            "allowedFunctionNames"
        )
    return tools


def _function(declared: FunctionDeclaration) -> Json:
    parameters = declared.parameters_json_schema
    if parameters is None and declared.parameters is not None:
        parameters = json_schema(declared.parameters)
    function = {"name": declared.name, "description": declared.description, "parameters": parameters}
    return {name: value for name, value in function.items() if value is not None}


def json_schema(schema: Mapping[str, Any]) -> Json:
    """JSON schema of one of Gemini's, which has types in capitals and `nullable`."""
    written: Json = {}
    for name, value in schema.items():
        if name == "type" and isinstance(value, str):
            written["type"] = value.lower()
        elif _COUNTS.fullmatch(name) and isinstance(value, str) and value.isdecimal():
            written[name] = int(value)
        elif name == "properties" and isinstance(value, dict):
            written[name] = {key: _inner(one) for key, one in value.items()}
        elif name in ("anyOf", "any_of") and isinstance(value, list):
            written["anyOf"] = [_inner(one) for one in value]
        elif name == "items":
            written[name] = _inner(value)
        elif name not in ("nullable", "propertyOrdering", "property_ordering"):
            written[name] = value
    if schema.get("nullable") is True and "type" in written:
        written["type"] = [written["type"], "null"]
    return written


def _inner(schema: object) -> object:
    return json_schema(schema) if isinstance(schema, dict) else schema


def _tool_choice(calling: CallingConfig) -> str | Json:
    names = calling.allowed_function_names or ()
    if calling.mode == "ANY" and len(names) == 1:
        return {"type": "function", "function": {"name": names[0]}}
    return _MODES.get(calling.mode or "", "auto")


def _response_format(config: GenerationConfig) -> Json | None:
    if config.response_mime_type not in (None, "text/plain", JSON_TYPE):
        raise InvalidRequestError(
            f"generationConfig.responseMimeType is {config.response_mime_type[:40]!r}, but an answer is text/plain or "
            f"{JSON_TYPE}"
        )
    schema = config.response_json_schema
    if schema is None and config.response_schema is not None:
        schema = json_schema(config.response_schema)
    if schema is not None:
        return answer_format(schema)
    return {"type": "json_object"} if config.response_mime_type == JSON_TYPE else None


def answer_of(completion: Json, asked: Translated, native: Mapping[str, Any] | None = None) -> Json:
    """The response body: Gemini's answer, extended by `qguide`."""
    answer, unparsed = content_of(completion, thinks=asked.thinks, native=native)
    guidance = completion["qguide"]
    guidance["warnings"] += [*asked.warnings, *unparsed]
    return answer | {"qguide": guidance}


_RESULT: Final = ("output", "result")  # only names in the response of a function whose text is all that it says
_ERROR: Final = "error"


def chat_turns(system: Content | None, contents: Sequence[Content]) -> list[Json]:
    """The messages of a chat completion."""
    turns: list[Json] = []
    if system and system.parts:
        instructions = [_part(part, "systemInstruction.parts") for part in system.parts]
        turns.append({"role": "system", "content": joined(instructions)})
    open_calls = OpenCalls()
    said: list[tuple[str, GeminiPart]] = []  # of the model's turn, with their places
    for index, content in enumerate(paced(contents)):
        parts = [(f"contents[{index}].parts[{number}]", part) for number, part in enumerate(content.parts or ())]
        if content.role == "model":
            said += parts
            if index + 1 < len(contents) and contents[index + 1].role == "model":
                continue  # Google's clients send back each piece of a stream as a content
            turns.append(_model_turn(said))
            open_calls, said = OpenCalls(turns[-1].get("tool_calls", ())), []
        else:
            turns.extend(_user_turns(parts, open_calls))
    return turns


def _model_turn(parts: Sequence[tuple[str, GeminiPart]]) -> Json:
    texts: list[str] = []
    calls: list[Json] = []
    thoughts: dict[str, list[str]] = {}
    for place, part in paced(parts):
        if part.thought:
            # An upstream gets back only thoughts of its own.
            if field := OWN_SIGNATURES.get(part.thought_signature or ""):
                thoughts.setdefault(field, []).append(part.text or "")
        elif call := part.function_call:
            function = {"name": call.name, "arguments": arguments_of(call.args or {})}
            call_id = call.id or "call_" + "_".join(_NUMBERS.findall(place))
            calls.append({"id": call_id, "type": "function", "function": function})
        elif part.text is not None:
            texts.append(part.text)
        else:
            raise _misplaced(place, "the model's turn has text and function calls")
    return assistant_turn(texts, calls, thoughts)


def _user_turns(parts: Sequence[tuple[str, GeminiPart]], open_calls: OpenCalls) -> Iterator[Json]:
    """Results of functions, then a message of everything else; files of results are in it."""
    others: list[Json] = []
    results: dict[str, GeminiResult] = {}
    for place, part in paced(parts):
        if result := part.function_response:
            if result.id and results.setdefault(result.id, result) is not result and results[result.id] == result:
                continue  # Google's CLI repeats the results of a session that it takes up again
            call_id = _answered(result, open_calls, place)
            content = _text_of(result.response or {})
            yield {"role": "tool", "tool_call_id": call_id, "content": content}
            within = f"{place}.functionResponse.parts"
            others += [_part(one, f"{within}[{k}]") for k, one in enumerate(result.parts or ())]
        else:
            others.append(_part(part, place))
    if others or not parts:
        yield {"role": "user", "content": joined(others)}


def _answered(result: GeminiResult, open_calls: OpenCalls, place: str) -> str:
    """The id of the call that a result answers; without an id or a name that is known, the first one."""
    found = open_calls.answered_by(result.name, result.id)
    if call_id := found or (None if result.id else open_calls.answered_by("", None)):
        return call_id
    raise MalformedHistoryError(
        f"{place} answers no open call of {result.name[:40]!r} in the model's turn before; send the turn that called "
        "it, with the same name and id"
    )


def _text_of(response: Mapping[str, Any]) -> str:
    if len(response) == 1:
        [(name, value)] = response.items()
        if name in _RESULT and isinstance(value, str):
            return value
        if name == _ERROR and isinstance(value, str):
            return f"Error: {value}"
    return json.dumps(response, ensure_ascii=False)


def _part(part: GeminiPart | ResultPart, place: str) -> Json:
    if isinstance(part, GeminiPart) and part.text is not None:
        return {"type": "text", "text": part.text}
    if blob := part.inline_data:
        # As data URLs have it: Google's SDK for Python sends the base64 of URLs, others no padding.
        data = blob.data.replace("-", "+").replace("_", "/") + "=" * (-len(blob.data) % 4)
        return _file(blob.mime_type, f"data:{blob.mime_type};base64,{data}", place)
    if file := part.file_data:
        return _file(file.mime_type or "image/", file.file_uri, place)
    raise _misplaced(place, "a user's turn has text, files and results of functions")


def _file(mime_type: str, address: str, place: str) -> Json:
    if mime_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": address}}
    if mime_type == "application/pdf" and address.startswith("data:"):
        return {"type": "file", "file": {"filename": "document.pdf", "file_data": address}}
    if mime_type.startswith("text/") and address.startswith("data:"):
        try:
            return {"type": "text", "text": base64.b64decode(address.partition(",")[2], validate=True).decode()}
        except ValueError as error:
            raise MalformedHistoryError(f"{place} is no text in UTF-8 and base64; send one") from error
    raise _misplaced(place, f"{mime_type[:40]!r} is no image, text or PDF file that is sent")


def _misplaced(place: str, why: str) -> MalformedHistoryError:
    return MalformedHistoryError(f"{place} cannot be translated for an upstream: {why}; remove it")
