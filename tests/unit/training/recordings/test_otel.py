"""OpenTelemetry GenAI spans become episodes, in the current conventions and in earlier ones."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qguide.qnet.errors import ConfigError
from qguide.qnet.types import Message, ToolCall
from qguide.training.data.trajectories import Trajectory
from qguide.training.recordings.episode import BadRecord
from qguide.training.recordings.fields import Fields
from qguide.training.recordings.otel import read_spans

REWARD = Fields(reward="eval.score")
CASED = Fields(reward="eval.score", task="app.case")
USER = {"role": "user", "parts": [{"type": "text", "content": "Find the mug."}]}
CALL = {
    "role": "assistant",
    "parts": [
        {"type": "reasoning", "content": "Hm."},
        {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"at": "desk"}},
    ],
}
RESULT = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": {"seen": "mug"}}]}
ANSWER = {"role": "assistant", "parts": [{"type": "text", "content": "On the desk."}]}
EPISODE = (
    Message("system", "Be brief."),
    Message("user", "Find the mug."),
    Message("assistant", "", (ToolCall("look", '{"at": "desk"}'),)),
    Message("tool", '{"seen": "mug"}'),
    Message("assistant", "On the desk."),
)
HALF_CHARACTER = '[{"role": "user", "parts": [{"type": "text", "content": "\\ud800"}]}]'
SYSTEM = [{"type": "text", "content": "Be brief."}]


def any_value(value: object) -> dict[str, Any]:
    """A value as OTLP/JSON writes it."""
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case list():
            return {"arrayValue": {"values": [any_value(item) for item in value]}}
        case dict():
            return {"kvlistValue": {"values": pairs(value)}}
    raise TypeError(type(value))


def pairs(attributes: Mapping[str, object]) -> list[dict[str, Any]]:
    """Attributes as OTLP/JSON writes them."""
    return [{"key": key, "value": any_value(value)} for key, value in attributes.items()]


def span(
    number: int,
    attributes: Mapping[str, object],
    *,
    trace: str = "t1",
    events: Sequence[tuple[str, Mapping[str, object]]] = (),
) -> dict[str, Any]:
    """A span; its number is its time."""
    return {
        "traceId": trace,
        "spanId": f"s{number}",
        "startTimeUnixNano": str(number),
        "attributes": pairs(attributes),
        "events": [{"name": name, "attributes": pairs(data)} for name, data in events],
    }


def request(asked: Sequence[object], answer: object, **more: object) -> dict[str, object]:
    """Attributes of one request, its messages as JSON text, as spans must hold them."""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.system_instructions": json.dumps(SYSTEM),
        "gen_ai.input.messages": json.dumps(asked),
        "gen_ai.output.messages": json.dumps([answer]),
        **more,
    }


def export(*spans: Mapping[str, Any]) -> str:
    """One line of a file export."""
    scopes = [{"spans": list(spans)}]
    return json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": scopes}]})


def log_export(*records: Mapping[str, Any]) -> str:
    """One line of a file export of logs."""
    scopes = [{"logRecords": list(records)}]
    return json.dumps({"resourceLogs": [{"resource": {}, "scopeLogs": scopes}]})


def read(folder: Path, *lines: str, fields: Fields = REWARD) -> tuple[list[Trajectory], list[BadRecord]]:
    """Episodes and bad records of a file with these lines."""
    path = folder / "spans.jsonl"
    path.write_text("\n".join(lines))
    found = list(read_spans([path], fields))
    episodes = [one for one in found if isinstance(one, Trajectory)]
    return episodes, [one for one in found if isinstance(one, BadRecord)]


FIRST = request([USER], CALL)
SECOND = request([USER, CALL, RESULT], ANSWER)


def test_the_requests_of_a_trace_are_one_episode(tmp_path: Path) -> None:
    root = span(0, {"gen_ai.operation.name": "invoke_agent", "eval.score": 1, "app.case": "m"})
    (episode,), bad = read(tmp_path, export(span(2, SECOND)), export(root, span(1, FIRST)), fields=CASED)
    assert bad == []
    assert episode.messages == EPISODE
    assert (episode.reward, episode.task_id) == (1.0, "m")
    with pytest.raises(ConfigError, match=r"spans\.jsonl .*'app\.case'; .*--task-key"):
        read(tmp_path, export(span(1, FIRST), span(2, SECOND)), fields=replace(CASED, default_reward=0.0))


def test_structured_attributes_are_read_like_json_text(tmp_path: Path) -> None:
    attributes = {
        "gen_ai.system_instructions": SYSTEM,
        "gen_ai.input.messages": [USER, CALL, RESULT],
        "gen_ai.output.messages": [ANSWER],
        "eval.score": 0.5,
    }
    (episode,), _ = read(tmp_path, export(span(1, attributes)))
    assert episode.messages == EPISODE


def test_conversations_of_one_trace_are_apart(tmp_path: Path) -> None:
    spans = [
        span(number, FIRST | {"gen_ai.conversation.id": name, "eval.score": float(number)})
        for number, name in ((1, "a"), (2, "b"))
    ]
    episodes, bad = read(tmp_path, export(*spans))
    assert [episode.reward for episode in episodes] == [1.0, 2.0]
    assert bad == []


def test_the_event_of_a_requests_details_may_be_a_log(tmp_path: Path) -> None:
    name = "gen_ai.client.inference.operation.details"
    log = {"traceId": "t1", "spanId": "s1", "timeUnixNano": "1", "eventName": name, "attributes": pairs(SECOND)}
    (episode,), bad = read(tmp_path, log_export(log), export(span(1, {"eval.score": True})))
    assert bad == []
    assert episode.messages == EPISODE


def test_messages_on_the_span_and_in_its_event_count_once(tmp_path: Path) -> None:
    event = {
        "traceId": "t1",
        "spanId": "s1",
        "timeUnixNano": "1",
        "eventName": "gen_ai.client.inference.operation.details",
        "attributes": pairs(SECOND),
    }
    both = [export(span(1, SECOND | {"eval.score": 1})), log_export(event)]
    (episode,), _ = read(tmp_path, *both)
    assert episode.messages == EPISODE


CALLS = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "desk"}'}}]
EARLIER: list[tuple[str, dict[str, object]]] = [
    ("gen_ai.system.message", {"content": "Be brief."}),
    ("gen_ai.user.message", {"content": "Find the mug."}),
    ("gen_ai.assistant.message", {"content": "", "tool_calls": CALLS}),
    ("gen_ai.tool.message", {"id": "c1", "content": '{"seen": "mug"}'}),
    ("gen_ai.choice", {"index": 0, "message": {"role": "assistant", "content": "On the desk."}}),
]


def test_earlier_events_on_a_span_are_read(tmp_path: Path) -> None:
    (episode,), bad = read(tmp_path, export(span(1, {"eval.score": 1}, events=EARLIER)))
    assert bad == []
    assert episode.messages == EPISODE


def test_earlier_events_among_the_logs_are_read(tmp_path: Path) -> None:
    logs = [
        {
            "traceId": "t1",
            "spanId": "s1",
            "timeUnixNano": str(number),
            "body": any_value(body),
            "attributes": pairs({"event.name": name}),
        }
        for number, (name, body) in enumerate(EARLIER, 1)
    ]
    lines = [log_export(*reversed(logs)), export(span(1, {"eval.score": 1}))]
    (episode,), bad = read(tmp_path, *lines)
    assert bad == []
    assert episode.messages == EPISODE


def test_each_message_is_as_it_was_when_the_agent_acted_on_it(tmp_path: Path) -> None:
    cut = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "[cleared]"}]}
    asked = [USER, CALL, cut, ANSWER, USER]
    third = span(
        3,
        request(
            asked,
            ANSWER,
            **{"eval.score": 1, "gen_ai.system_instructions": [{"type": "text", "content": "It is 9:01."}]},
        ),
    )
    (episode,), bad = read(tmp_path, export(span(1, FIRST)), export(span(2, SECOND)), export(third))
    assert bad == []
    assert episode.messages == (*EPISODE, EPISODE[1], EPISODE[4])


def test_a_request_that_is_repeated_at_the_end_ends_no_episode(tmp_path: Path) -> None:
    (episode,), bad = read(
        tmp_path, export(span(1, FIRST)), export(span(2, SECOND | {"eval.score": 1})), export(span(3, FIRST))
    )
    assert bad == []
    assert episode.messages == EPISODE


def test_a_request_that_belongs_to_another_agent_is_named_by_its_line(tmp_path: Path) -> None:
    title = {"role": "user", "parts": [{"type": "text", "content": "SECRET title"}]}
    other = span(1, request([title], ANSWER, **{"eval.score": 1}))
    episodes, (bad,) = read(tmp_path, export(other), export(span(2, SECOND)))
    assert episodes == []
    assert bad.line == 1
    assert "line 2 does not continue the one in line 1" in bad.reason
    assert "SECRET" not in bad.reason


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        (FIRST, "none of its spans has the attribute 'eval.score'"),
        (FIRST | {"eval.score": "good"}, "type str"),
        (
            {"gen_ai.input.messages": '[{"role": "user", "par', "eval.score": 1},
            "gen_ai.input.messages cannot be read; it may have been cut off: it is not JSON",
        ),
        ({"gen_ai.input.messages": HALF_CHARACTER, "eval.score": 1}, "it holds text that is not UTF-8"),
        ({"gen_ai.input.messages": "[" * 101 + "]" * 101, "eval.score": 1}, "more than 100 levels deep"),
        (
            request([{"role": "user", "parts": [{"type": "blob", "content": "SECRET"}]}], ANSWER) | {"eval.score": 1},
            "gen_ai.input.messages[0].parts[0] is not text",
        ),
    ],
)
def test_a_conversation_that_cannot_be_read_is_named(
    tmp_path: Path, attributes: Mapping[str, object], reason: str
) -> None:
    episodes, (bad,) = read(tmp_path, export(span(1, attributes)))
    assert episodes == []
    assert reason in bad.reason
    assert "SECRET" not in bad.reason


def test_different_rewards_of_one_conversation_are_refused(tmp_path: Path) -> None:
    spans = [span(1, FIRST | {"eval.score": 0}), span(2, SECOND | {"eval.score": 1})]
    _, (bad,) = read(tmp_path, export(*spans))
    assert "2 different values" in bad.reason


def test_lines_of_another_shape_are_named(tmp_path: Path) -> None:
    _, bad = read(tmp_path, '{"spans": []}', "5", "not JSON")
    assert [one.line for one in bad] == [1, 2, 3]


def test_the_attribute_of_the_reward_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--reward-key"):
        read(tmp_path, export(span(1, FIRST)), fields=Fields())


def test_outcomes_are_listed_by_trace_or_conversation(tmp_path: Path) -> None:
    named = FIRST | {"gen_ai.conversation.id": "c9"}
    fields = Fields(outcomes={"t1": 1.0, "c9": 0.5})
    lines = export(span(1, FIRST), span(2, named, trace="t2"), span(3, FIRST, trace="t3"))
    episodes, (bad,) = read(tmp_path, lines, fields=fields)
    assert [episode.reward for episode in episodes] == [1.0, 0.5]
    assert "'t3'" in bad.reason


def test_outcomes_are_listed_by_an_attribute_of_a_span(tmp_path: Path) -> None:
    fields = Fields(task="task", outcome="run", outcomes={"7": 1.0, "t2": 0.5, "same": 0.25})
    ran = {"task": "same", "run": 7}
    lines = export(span(1, FIRST | ran), span(2, FIRST | {"task": "same"}, trace="t2"))
    [episode], (bad,) = read(tmp_path, lines, fields=fields)
    assert (episode.task_id, episode.reward) == ("same", 1.0)
    assert "lack 'run'" in bad.reason
