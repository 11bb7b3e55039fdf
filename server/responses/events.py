"""Semantic events of a streamed response. Pure."""

from collections.abc import Iterator

from qguide.server.streaming.events import Json, pieces_of


def opening_events(response: Json) -> Iterator[Json]:
    """The first events; they need no output."""
    yield {"type": "response.created", "response": response}
    yield {"type": "response.in_progress", "response": response}


def closing_events(response: Json) -> Iterator[Json]:
    """The output of a finished response item by item, and its end."""
    for index, item in enumerate(response["output"]):
        yield from _item_events(index, item)
    yield {"type": f"response.{response['status']}", "response": response}


def failure_events(response: Json, error: Json) -> Iterator[Json]:
    """The end of a response that failed."""
    detail = error["error"]
    yield {"type": "error"} | {name: detail[name] for name in ("code", "message", "param")}
    yield {"type": "response.failed", "response": response}


def _item_events(index: int, item: Json) -> Iterator[Json]:
    at = {"output_index": index}
    place = at | {"item_id": item.get("id", "")}
    kind = item["type"]
    begun = item | {"status": "in_progress"}
    if kind == "function_call":
        inside = _text_events("function_call_arguments", "arguments", item.get("arguments"), place)
        begun["arguments"] = ""
    elif kind == "custom_tool_call":
        inside = _text_events("custom_tool_call_input", "input", item.get("input"), place)
        begun["input"] = ""
    else:  # an upstream's own item of another type may have no content
        parts = enumerate(item.get("content") or ())
        inside = (e for k, part in parts for e in _part_events(part, place | {"content_index": k}))
        begun |= {"content": []} if "content" in item else {}
    yield {"type": "response.output_item.added", "item": begun} | at
    yield from inside
    yield {"type": "response.output_item.done", "item": item} | at


def _text_events(name: str, field: str, text: str | None, place: Json) -> Iterator[Json]:
    """A text in one piece, and as a whole; an upstream's own item may have none."""
    if text:
        yield {"type": f"response.{name}.delta", "delta": text} | place
    yield {"type": f"response.{name}.done", field: text or ""} | place


def _part_events(part: Json, place: Json) -> Iterator[Json]:
    kind = part.get("type") or "output_text"
    field = "refusal" if kind == "refusal" else "text"
    text = part.get(field) or ""
    begun = part | {field: ""} | ({"logprobs": []} if "logprobs" in part else {})
    yield {"type": "response.content_part.added", "part": begun} | place
    if kind == "output_text":
        yield from _output_text_events(text, part.get("logprobs") or [], place)
    else:
        yield from _text_events(kind, field, text, place)
    yield {"type": "response.content_part.done", "part": part} | place


def _output_text_events(text: str, logprobs: list[Json], place: Json) -> Iterator[Json]:
    # Tokens may end inside a word, so a text with log-probabilities is not split.
    for piece in [text] if logprobs else pieces_of(text):
        delta = {"type": "response.output_text.delta", "delta": piece, "logprobs": logprobs}
        yield delta | place
    yield {"type": "response.output_text.done", "text": text, "logprobs": logprobs} | place
