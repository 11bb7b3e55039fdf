"""Exports of evaluations and observability: Inspect, Langfuse, LangSmith, MLflow, Phoenix."""

import json
import zipfile
from pathlib import Path
from typing import Final

from qguide.training.recordings.fields import Fields
from tests.support.recordings.sample import ARGUMENTS, ASKED, CALLED, CHAT, SYSTEM, TASK, Sample, dump

INSPECT_SAMPLE: Final = {
    "id": "mug",
    "epoch": 1,
    "input": TASK,
    "target": "desk",
    "messages": [
        {"role": "system", "content": SYSTEM.content, "id": "m0"},
        {"role": "user", "content": TASK, "source": "input"},
        {
            "role": "assistant",
            "content": [
                {"type": "reasoning", "reasoning": "Mugs stand on desks."},
                {"type": "text", "text": "I look."},
            ],
            "source": "generate",
            "tool_calls": [{"id": "c1", "function": "look", "arguments": ARGUMENTS, "type": "function"}],
        },
        {"role": "tool", "content": "A mug.", "tool_call_id": "c1", "function": "look"},
        {"role": "assistant", "content": "It is on the desk.", "source": "generate"},
    ],
    "scores": {"match": {"value": "C", "answer": "desk"}},
    "metadata": {},
    "events": [],
}

INSPECT_HEADER: Final = {"version": 2, "status": "success", "eval": {"task": "finding", "model": "gpt"}}


def inspect_eval(folder: Path) -> None:
    """An Inspect log: a zip of JSON files."""
    with zipfile.ZipFile(folder / "log.eval", "w", zipfile.ZIP_DEFLATED) as log:
        log.writestr("_journal/start.json", json.dumps(INSPECT_HEADER))
        log.writestr("samples/mug_epoch_1.json", json.dumps(INSPECT_SAMPLE))
        log.writestr("summaries.json", "[]")
        log.writestr("header.json", json.dumps(INSPECT_HEADER))


def inspect_json(folder: Path) -> None:
    """The same in Inspect's JSON format."""
    log = {**INSPECT_HEADER, "samples": [INSPECT_SAMPLE], "stats": {}}
    (folder / "log.json").write_text(json.dumps(log, indent=2))


def langfuse(folder: Path) -> None:
    """Rows of a blob export, observations and scores, the messages as JSON text."""
    span = {"id": "o0", "trace_id": "t1", "type": "SPAN", "input": "{}", "output": "{}"}
    first = {
        "id": "o1",
        "trace_id": "t1",
        "type": "GENERATION",
        "name": "chat",
        "start_time": "2026-01-01 10:00:00.000000",
        "input": json.dumps({"messages": CHAT[:1], "tools": []}),
        "output": json.dumps(CHAT[1]),
    }
    second = {
        **first,
        "id": "o2",
        "start_time": "2026-01-01 10:00:05.000000",
        "input": json.dumps({"messages": CHAT[:3]}),
        "output": json.dumps(CHAT[3]),
    }
    dump(folder / "observations_v2" / "1.jsonl", span, second, first)
    score = {"id": "s1", "trace_id": "t1", "name": "correct", "value": 1, "data_type": "NUMERIC"}
    dump(folder / "scores" / "1.jsonl", score)


def langfuse_trace(folder: Path) -> None:
    """A downloaded trace, with its observations and scores."""
    generation = {
        "id": "o1",
        "traceId": "t1",
        "type": "GENERATION",
        "startTime": "2026-01-01T10:00:00.000Z",
        "input": CHAT[:3],
        "output": "It is on the desk.",
    }
    trace = {
        "id": "t1",
        "name": "agent",
        "metadata": {"case": "mug"},
        "input": None,
        "observations": [generation],
        "scores": [{"name": "correct", "value": 1}],
    }
    (folder / "trace-t1.json").write_text(json.dumps(trace, indent=2))


def langsmith(folder: Path) -> None:
    """Runs of a LangChain agent."""
    kinds = ("HumanMessage", "AIMessage", "ToolMessage")
    kwargs = (
        {"content": TASK, "type": "human"},
        {
            "content": "I look.",
            "type": "ai",
            "tool_calls": [{"name": "look", "args": ARGUMENTS, "id": "c1", "type": "tool_call"}],
        },
        {"content": "A mug.", "type": "tool", "tool_call_id": "c1"},
    )
    asked = [
        {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", kind], "kwargs": said}
        for kind, said in zip(kinds, kwargs, strict=True)
    ]
    answer = {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", "AIMessage"],
        "kwargs": {"content": "It is on the desk.", "type": "ai"},
    }
    root = {
        "id": "t1",
        "trace_id": "t1",
        "run_type": "chain",
        "name": "AgentExecutor",
        "start_time": "2026-01-01T10:00:00",
        "inputs": {"input": TASK},
        "outputs": {},
        "feedback_stats": {"correct": {"n": 1, "avg": 1.0}},
        "extra": {"metadata": {"case": "mug"}},
    }
    call = {
        "id": "r1",
        "trace_id": "t1",
        "run_type": "llm",
        "name": "ChatOpenAI",
        "start_time": "2026-01-01T10:00:01",
        "inputs": {"messages": [asked]},
        "outputs": {"generations": [[{"text": "It is on the desk.", "message": answer}]]},
    }
    dump(folder / "runs.jsonl", root, call)


def mlflow(folder: Path) -> None:
    """A trace of MLflow, whose attributes are JSON text in JSON."""
    attributes = {
        "mlflow.traceRequestId": '"tr-1"',
        "mlflow.spanType": '"CHAT_MODEL"',
        "mlflow.spanInputs": json.dumps({"messages": CHAT[:3], "model": "gpt"}),
        "mlflow.spanOutputs": json.dumps({"object": "chat.completion", "choices": [{"index": 0, "message": CHAT[3]}]}),
    }
    root = {"mlflow.spanType": '"AGENT"', "mlflow.spanInputs": '{"question": 1}'}
    trace = {
        "info": {
            "trace_id": "tr-1",
            "tags": {"case": "mug"},
            "assessments": [{"assessment_name": "correct", "feedback": {"value": True}, "trace_id": "tr-1"}],
        },
        "data": {
            "spans": [
                {"span_id": "a", "start_time_unix_nano": 1, "attributes": root},
                {"span_id": "b", "start_time_unix_nano": 2, "attributes": attributes},
            ]
        },
    }
    (folder / "traces.json").write_text(json.dumps([trace]))


def phoenix(folder: Path) -> None:
    """Spans of Phoenix's data frame, written as JSON lines."""
    call = {
        "tool_call.id": "c1",
        "tool_call.function.name": "look",
        "tool_call.function.arguments": json.dumps(ARGUMENTS),
    }
    asked = [
        {"message.role": "user", "message.content": TASK},
        {"message.role": "assistant", "message.content": "I look.", "message.tool_calls": [call]},
        {"message.role": "tool", "message.content": "A mug.", "message.tool_call_id": "c1"},
    ]
    answered = [{"message.role": "assistant", "message.content": "It is on the desk."}]
    span = {
        "name": "ChatCompletion",
        "span_kind": "LLM",
        "parent_id": None,
        "start_time": "2026-01-01T10:00:00+00:00",
        "context.span_id": "a1",
        "context.trace_id": "b1",
        "attributes.llm.model_name": "gpt",
        "attributes.llm.input_messages": asked,
        "attributes.llm.output_messages": answered,
        "attributes.metadata": {"case": "mug", "correct": 1},
    }
    dump(folder / "spans.jsonl", span)


def phoenix_flat(folder: Path) -> None:
    """A span of Phoenix's REST interface, with flattened attributes."""
    attributes = {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": TASK,
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.contents.0.message_content.type": "text",
        "llm.output_messages.0.message.contents.0.message_content.text": "It is on the desk.",
        "metadata": {"case": "mug"},
    }
    span = {
        "id": "1",
        "name": "chat",
        "context": {"trace_id": "b1", "span_id": "a1"},
        "span_kind": "LLM",
        "start_time": "2026-01-01T10:00:00+00:00",
        "attributes": attributes,
        "annotations": [{"name": "correct", "result": {"score": 1, "label": "yes"}}],
    }
    dump(folder / "spans.jsonl", span)


FOUND: Final = Fields(reward="scores.correct")
SAMPLES: Final = (
    Sample("inspect", inspect_eval, (SYSTEM, *CALLED), "finding/mug", agent="gpt", terminated=True, left_out=(1,)),
    Sample("inspect", inspect_json, (SYSTEM, *CALLED), "finding/mug", agent="gpt", terminated=True, left_out=(1,)),
    Sample("langfuse", langfuse, CALLED, "", fields=FOUND),
    Sample("langfuse", langfuse_trace, CALLED, "mug", fields=Fields("scores.correct", "metadata.case")),
    Sample("langsmith", langsmith, CALLED, "mug", fields=Fields("feedback_stats.correct.avg", "extra.metadata.case")),
    Sample("mlflow", mlflow, CALLED, "mug", fields=Fields("assessments.correct", "tags.case")),
    Sample("phoenix", phoenix, CALLED, "mug", fields=Fields("metadata.correct", "metadata.case")),
    Sample("phoenix", phoenix_flat, ASKED, "mug", fields=Fields("annotations.correct", "metadata.case")),
)
