"""Events of OpenHands as plain records: the versions before and since its agent SDK."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

from qguide.qnet.errors import RecordError
from qguide.training.recordings.fields import first_at, value_at
from qguide.training.recordings.formats.layout import Record

EVENTS: Final = "events that the agent's model does not read"
REWARDS: Final = ("report.resolved", "test_result.report.resolved", "test_result.resolved", "test_result.result")
_UNSEEN: Final = ("null", "change_agent_state", "agent_state_changed", "recall", "condensation")
_SPOKEN: Final = ("message", "system")


def openhands_records(record: Record) -> Iterator[Record]:
    """A line of an evaluation's `output.jsonl`."""
    events = [one for one in _flat(record["history"]) if isinstance(one, Mapping)]
    turns: list[Record] = []
    unseen = 0
    for event in events:
        said = list(_new_turns(event) if "kind" in event else _old_turns(event))
        unseen += not said
        turns += said
    yield {
        "messages": turns,
        "reward": first_at(record, REWARDS),
        "task_id": record.get("instance_id"),
        "source": first_at(record, ("metadata.agent_class", "metadata.llm_config.model")),
        "terminated": not record["error"] if "error" in record else None,
        "left_out": {EVENTS: unseen},
    }


def _flat(history: list[Any]) -> Iterator[Any]:
    """Events, which the earliest versions keep as pairs of an action and its observation."""
    return chain.from_iterable(one if isinstance(one, list) else [one] for one in history)


def _new_turns(event: Record) -> Iterator[Record]:
    match event["kind"]:
        case "SystemPromptEvent":
            yield {"role": "system", "content": _texts_in([event["system_prompt"]])}
        case "MessageEvent":
            role = "assistant" if event.get("source") == "agent" else "user"
            if content := _texts_in(value_at(event, "llm_message.content")):
                yield {"role": role, "content": content}
        case "ActionEvent":
            yield _new_action(event)
        case "ObservationEvent" | "AgentErrorEvent" | "UserRejectObservation":
            said = first_at(event, ("observation.content", "error", "rejection_reason", "observation.output"))
            yield _result(event.get("tool_call_id"), _texts_in(said))


def _new_action(event: Record) -> Record:
    given = value_at(event, "tool_call.function.arguments")
    if given is None:
        given = value_at(event, "tool_call.arguments")
    if given is None:
        given = {name: v for name, v in (event.get("action") or {}).items() if name != "kind"}
    call = {"id": event.get("tool_call_id"), "name": event["tool_name"], "arguments": given}
    thought = _texts_in(event.get("thought"))
    return {"role": "assistant", "content": thought, "tool_calls": [call]}


def _old_turns(event: Record) -> Iterator[Record]:
    kind = event.get("action") or event.get("observation")
    called = event.get("tool_call_metadata") or {}
    if kind in _UNSEEN or not kind:
        return
    if "observation" in event:
        content = event.get("content") or event.get("message") or ""
        yield _result(called.get("tool_call_id"), content)
    elif kind in _SPOKEN:
        role = {"system": "system", "message": "user"}[kind]
        said = value_at(event, "args.content") or event.get("message")
        if said:
            yield {
                "role": "assistant" if event.get("source") == "agent" and kind == "message" else role,
                "content": said,
            }
    else:
        yield _old_action(event, called)


def _old_action(event: Record, called: Record) -> Record:
    given = event.get("args") or {}
    if called:
        message = value_at(called, "model_response.choices.0.message") or {}
        calls = message.get("tool_calls") or []
        own = [call for call in calls if call.get("id") == called["tool_call_id"]]
        call = own[0] if own else {"id": called["tool_call_id"], "name": called["function_name"], "arguments": given}
        first = not calls or calls[0] is call
        content = message.get("content") if first else ""
        return {"role": "assistant", "content": content, "tool_calls": [call]}
    done = first_at(given, ("command", "code", "final_thought", "content", "path")) or ""
    texts = [text for text in (given.get("thought"), f"{event['action']}: {done}") if text]
    return {"role": "assistant", "content": "\n".join(texts)}


def _result(call_id: object, content: object) -> Record:
    if call_id:
        return {"role": "tool", "tool_call_id": call_id, "content": content}
    return {"role": "user", "content": content}


def _texts_in(parts: object) -> str:
    """The texts of a list of parts, or a text itself; "" without any."""
    if isinstance(parts, str):
        return parts
    found = [one for one in parts if isinstance(one, Mapping)] if isinstance(parts, list) else []
    for one in found:
        if one.get("type", "text") != "text":
            raise RecordError(f"it has a part of type {one['type']!r}, which is not text")
    return "\n".join(text for one in found if isinstance(text := one.get("text"), str))
