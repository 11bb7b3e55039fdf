"""Requests to models in the exports of Langfuse, LangSmith, MLflow and Phoenix.

Each becomes a `Fragment`, as OpenTelemetry's spans do: the last request of a trace has the whole
history. Scores and feedback are attributes, which `--reward-key` names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from qguide.qnet.errors import RecordError
from qguide.training.recordings.fields import first_at, value_at
from qguide.training.recordings.formats.layout import Record
from qguide.training.recordings.otel_spans import CONVERSATION, Fragment, objects_in, structured
from qguide.training.recordings.turns import read_turns

_ASKED: Final = ("messages", "input.messages", "input", "contents", "prompt")
_ANSWERED: Final = (
    "choices.0.message",
    "generations.0.0.message",
    "generations.0.0.text",
    "output.message",
    "message",
    "output",
    "messages",
    "content",
    "text",
)
_MODEL_KINDS: Final = ("GENERATION", "LLM", "CHAT_MODEL", "llm")

Fragments = Callable[[object], Iterator[Fragment]]


def langfuse(record: object) -> Iterator[Fragment]:
    """A trace with its observations, an observation, or a score of one."""
    row = _object(record)
    trace = _text(row, "traceId", "trace_id") or _text(row, "id")
    told = [(one.get("name"), one.get("value")) for one in objects_in(row.get("scores"))]
    scores = {"scores": _one_each(told, "score")}
    if "type" not in row and "name" in row and "value" in row:
        scores = {"scores": {row["name"]: row["value"]}}
    yield _fragment(row, trace, {**row, **scores})
    for inner in objects_in(row.get("observations")):
        yield from langfuse({"traceId": trace, **inner})


def langsmith(record: object) -> Iterator[Fragment]:
    """A run; its feedback is at `feedback_stats.NAME.avg`."""
    row = _object(record)
    trace = _text(row, "trace_id") or _text(row, "id")
    yield _fragment(row, trace, row, ("inputs",), ("outputs",))
    for inner in objects_in(row.get("child_runs")):
        yield from langsmith({"trace_id": trace, **inner})


def mlflow(record: object) -> Iterator[Fragment]:
    """A trace; its assessments are at `assessments.NAME`."""
    row = _object(record)
    info = value_at(row, "info")
    trace = str(first_at(info, ("trace_id", "request_id")) or "")
    told = [
        (one.get("assessment_name") or one.get("name"), first_at(one, ("feedback.value", "expectation.value", "value")))
        for one in objects_in(value_at(info, "assessments"))
        if one.get("valid") is not False  # another one has taken its place
    ]
    assessments = _one_each(told, "assessment")
    yield _fragment({}, trace, {**_object(info), "assessments": assessments})
    for span in objects_in(first_at(row, ("data.spans", "spans"))):
        attributes = {name: _plain(value) for name, value in _object(span["attributes"]).items()}
        fields = {**span, **attributes, "type": attributes.get("mlflow.spanType")}
        yield _fragment(fields, trace, fields, ("mlflow.spanInputs",), ("mlflow.spanOutputs",))


def phoenix(record: object) -> Iterator[Fragment]:
    """A span in OpenInference's conventions; its annotations are at `annotations.NAME`."""
    row = _nested(_object(record))
    trace = str(value_at(row, "context.trace_id") or "")
    annotations = _one_each(
        [(one.get("name"), first_at(one, ("result.score", "score"))) for one in objects_in(row.get("annotations"))],
        "annotation",
    )
    attributes = _object(row.get("attributes") or {})
    llm = _object(attributes.get("llm") or {})
    told = {
        **row,
        "id": value_at(row, "context.span_id"),
        "type": first_at(row, ("span_kind", "attributes.openinference.span.kind")),
        "input": [_phoenix_turn(one) for one in objects_in(_listed(llm.get("input_messages")))],
        "output": [_phoenix_turn(one) for one in objects_in(_listed(llm.get("output_messages")))],
    }
    session = value_at(attributes, "session.id")
    named = {CONVERSATION: session} if session else {}
    yield _fragment(told, trace, {**attributes, **named, "annotations": annotations})


def _one_each(told: Iterable[tuple[Any, Any]], what: str) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for name, value in told:
        if found.setdefault(name, value) != value:
            raise RecordError(f"it has two values of the {what} {name!r}; keep the one that counts")
    return found


def _phoenix_turn(row: Record) -> Record:
    message = dict(_object(row.get("message") or row))
    calls = [_object(one.get("tool_call") or one) for one in objects_in(_listed(message.get("tool_calls")))]
    if calls:
        message["tool_calls"] = calls
    contents = objects_in(_listed(message.pop("contents", None)))
    parts = [_object(one.get("message_content") or one) for one in contents]
    if parts and not message.get("content"):
        message["content"] = [{"type": one.get("type"), "text": one.get("text")} for one in parts]
    return message


def _fragment(
    row: Record,
    trace: str,
    attributes: Mapping[str, Any],
    asked: tuple[str, ...] = ("input",),
    answered: tuple[str, ...] = ("output",),
) -> Fragment:
    """A span; its messages only if it asked a model, because others repeat what these say."""
    if not trace:
        raise RecordError("it has no id of a trace")
    time = first_at(row, ("startTime", "start_time", "start_time_unix_nano", "start_time_ns"))
    fragment = Fragment(trace, _text(row, "id", "span_id"), _time(time), attributes)
    kind = first_at(row, ("type", "run_type"))
    if kind not in _MODEL_KINDS:
        return fragment
    try:
        for names, places, role, into in (
            (asked, _ASKED, "user", fragment.asked),
            (answered, _ANSWERED, "assistant", fragment.answered),
        ):
            said = _read_json(first_at(row, names), names[0])
            into += read_turns(_messages(said, places, role), names[0]).messages
    except RecordError as error:
        fragment.flaw = str(error)
    return fragment


def _messages(said: Any, places: tuple[str, ...], role: str) -> list[Any]:
    """The messages of a request or an answer, whichever API it was."""
    match said:
        case {"role": _} | {"kwargs": _} | {"object": "response"}:
            return [said]
        case {"tool_calls": [_, *_]}:
            return [{"role": role, **said}]
        case Mapping():
            system = [{"role": "system", "content": said["system"]}] if said.get("system") else []
            return system + _messages(first_at(said, places), places, role)
        case str():
            return [{"role": role, "content": said}]
        case [list(batch)]:
            return batch  # LangChain asks for a batch of one
        case [{"type": "text"}, *_]:
            return [{"role": role, "content": said}]
        case list():
            return said
    return []


def _read_json(said: object, name: str) -> Any:
    """The value that a field holds as JSON text; another text is what was said."""
    if isinstance(said, str) and said.lstrip()[:1] in ("{", "[", '"'):
        return structured(said, name)
    return said


def _nested(row: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in row.items():
        inner = nested
        *outer, last = name.split(".")
        for part in outer:
            found = inner.setdefault(part, {})
            inner = found if isinstance(found, dict) else {}
        plain = _nested(value) if isinstance(value, Mapping) else value
        if isinstance(value, list):
            plain = [_nested(one) if isinstance(one, Mapping) else one for one in value]
        known = inner.get(last)
        inner[last] = known | plain if isinstance(known, dict) and isinstance(plain, dict) else plain
    return nested


def _listed(value: object) -> object:
    """A list, which flattened keys have as an object with numbers."""
    if isinstance(value, Mapping) and value and all(str(key).isdecimal() for key in value):
        return [value[key] for key in sorted(value, key=int)]
    return value


def _plain(value: object) -> object:
    """An attribute of MLflow, which is JSON text in JSON."""
    try:
        return structured(value, "attribute")
    except RecordError:
        return value


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RecordError("it is not a JSON object")
    return value


def _text(row: Record, *names: str) -> str:
    found = first_at(row, names)
    return str(found) if isinstance(found, str | int) else ""


def _time(value: object) -> int:
    """Nanoseconds, or whatever orders the requests of one trace."""
    if isinstance(value, int | float):
        return int(value)
    try:
        read = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        return int(str(value)) if str(value).isdecimal() else 0
    return int(read.timestamp() * 1e9)
