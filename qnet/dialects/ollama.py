"""Ollama's chats from and to chat completions. Pure.

Calls have no ids in Ollama, or only in newer versions: a result belongs to the first open call of
its `tool_name`, and without a name to the first open call.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from qguide.qnet.chat_messages import reply_text
from qguide.qnet.dialects.anthropic_answers import read_call
from qguide.qnet.dialects.anthropic_requests import arguments_of
from qguide.qnet.dialects.shapes import ASKED, LENGTH, Json, OpenCalls, answer_format, calls_in, pieces_of, thoughts_in
from qguide.qnet.errors import MalformedHistoryError
from qguide.qnet.turns import paced

OPTIONS: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "seed": "seed",
    "stop": "stop",
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
"""Ollama's options and the chat completion's parameters; the others are of its own engine."""
_IMAGES: Final = {"/9j/": "jpeg", "iVBOR": "png", "R0lGOD": "gif", "UklGR": "webp"}
"""First characters of an image in base64, and its type, which Ollama's bodies do not name."""
_NS_PER_MS: Final = 1_000_000


def chat_of(body: Mapping[str, Any]) -> tuple[Json, set[str]]:
    """The chat completion's body, and names of options that have no effect."""
    options = {k: v for k, v in (body.get("options") or {}).items() if v is not None}
    if options.get("num_predict", 1) < 0:  # no limit
        del options["num_predict"]
    chat: Json = {OPTIONS[name]: given for name, given in options.items() if name in OPTIONS}
    chat |= {"model": body["model"], "messages": _turns(body["messages"])}
    if body.get("tools"):
        chat["tools"] = body["tools"]
    if isinstance(form := body.get("format"), dict):
        chat["response_format"] = answer_format(form)
    elif form:
        chat["response_format"] = {"type": "json_object"}
    if body.get("think") is True:
        chat |= ASKED
    elif isinstance(effort := body.get("think"), str):
        chat["reasoning_effort"] = effort
    return chat, {f"options.{name}" for name in options.keys() - OPTIONS.keys()}


def chat_of_prompt(body: Mapping[str, Any]) -> Json:
    """The body of a chat that says what a prompt for generating says."""
    others = {k: v for k, v in body.items() if k not in ("prompt", "system", "images")}
    system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    said = {"role": "user", "content": body["prompt"], "images": body.get("images")}
    return others | {"messages": [*system, said]}


def _turns(messages: Sequence[Mapping[str, Any]]) -> list[Json]:
    turns: list[Json] = []
    open_calls = OpenCalls()
    for index, message in enumerate(paced(messages)):
        role, text = message["role"], message.get("content") or ""
        if role == "tool":
            name, given = message.get("tool_name") or "", message.get("tool_call_id")
            call_id = open_calls.answered_by(name, given)
            if call_id is None:
                raise MalformedHistoryError(
                    f"messages[{index}] answers no open call of the assistant's message before; "
                    "send the message that called it, with the same tool_name"
                )
            turns.append({"role": role, "tool_call_id": call_id, "content": text})
        elif role == "assistant":
            calls = [
                {
                    "id": call.get("id") or f"call_{index}_{number}",
                    "type": "function",
                    "function": {
                        "name": call["function"]["name"],
                        "arguments": arguments_of(call["function"].get("arguments") or {}),
                    },
                }
                for number, call in enumerate(message.get("tool_calls") or ())
            ]
            open_calls = OpenCalls(calls)
            turn: Json = {"role": role, "content": None if calls and not text else text}
            turns.append(turn | {"tool_calls": calls} if calls else turn)
        else:
            images = [
                _image(image, f"messages[{index}].images[{number}]")
                for number, image in enumerate(message.get("images") or ())
            ]
            said = [{"type": "text", "text": text}] if text else []
            turns.append({"role": role, "content": [*said, *images] if images else text})
    return turns


def _image(image: str, place: str) -> Json:
    for begin, kind in _IMAGES.items():
        if image.startswith(begin):
            return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{image}"}}
    raise MalformedHistoryError(f"{place} is no JPEG, PNG, GIF or WebP image in base64; send one, or remove it")


def answer_of(completion: Json, *, thinks: bool, warnings: Sequence[str]) -> Json:
    """Ollama's answer with the best candidate, and with its thoughts if it `thinks`, extended by `qguide`."""
    choice, usage, guidance = completion["choices"][0], completion["usage"], completion["qguide"]
    message: Json = {"role": "assistant", "content": reply_text(choice["message"])}
    if thinks and (thoughts := thoughts_in(choice["message"])):
        message["thinking"] = thoughts[1]
    calls, unparsed = [], []
    for call in calls_in(choice["message"]):
        name, given, warning = read_call(call, "arguments")
        unparsed += warning
        calls.append({"id": call["id"], "function": {"name": name, "arguments": given}})
    if calls:
        message["tool_calls"] = calls
    guidance["warnings"] += [*warnings, *unparsed]
    timings = guidance["timings_ms"]
    return {
        "model": completion["model"],
        "created_at": written_time(completion["created"]),
        "message": message,
        "done": True,
        "done_reason": LENGTH if choice["finish_reason"] == LENGTH else "stop",
        "total_duration": int(timings["total"] * _NS_PER_MS),
        "prompt_eval_count": usage["prompt_tokens"],
        "eval_count": usage["completion_tokens"],
        "eval_duration": int(timings["sample"] * _NS_PER_MS),
        "qguide": guidance,
    }


def lines_of(answer: Json) -> Iterator[Json]:
    """The lines of a stream, which together are the whole answer."""
    message = answer["message"]
    for name in ("thinking", "content"):
        for piece in pieces_of(message.get(name) or ""):
            yield _line(answer, {"content": "", name: piece})
    for call in message.get("tool_calls", ()):
        yield _line(answer, {"content": "", "tool_calls": [call]})
    yield answer | {"message": {"role": "assistant", "content": ""}}


def generated(line: Json) -> Json:
    """An answer to a chat, or a line of one, as an answer to a prompt."""
    said = line.get("message")
    if said is None:  # an error
        return line
    thoughts = {"thinking": said["thinking"]} if "thinking" in said else {}
    rest = {name: value for name, value in line.items() if name != "message"}
    return rest | {"response": said["content"]} | thoughts


def sign_of_life(model: str, at: float) -> Json:
    """A line without text: clients of Ollama read every line as an answer."""
    return _line({"model": model, "created_at": written_time(at)}, {"content": ""})


def _line(answer: Json, said: Json) -> Json:
    same = {name: answer[name] for name in ("model", "created_at")}
    return same | {"message": {"role": "assistant", **said}, "done": False}


def written_time(at: float) -> str:
    """A time in seconds as Ollama writes it."""
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
