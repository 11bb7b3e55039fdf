"""Small recordings of one episode in the formats of others, faithful to their files."""

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from qguide.qnet.types import Message, ToolCall
from qguide.training.recordings.fields import Fields

TASK: Final = "Find the mug."
ARGUMENTS: Final = {"at": "desk"}
CALLED: Final = (
    Message("user", TASK),
    Message("assistant", "I look.", (ToolCall("look", json.dumps(ARGUMENTS)),)),
    Message("tool", "A mug."),
    Message("assistant", "It is on the desk."),
)
"""The episode with a call of a tool."""
SAID: Final = (
    Message("user", TASK),
    Message("assistant", "look desk"),
    Message("user", "A mug."),
    Message("assistant", "take mug"),
    Message("user", "Taken."),
)
"""The episode of an agent that only writes."""
ASKED: Final = (Message("user", TASK), Message("assistant", "It is on the desk."))
SYSTEM: Final = Message("system", "You find things.")

CHAT: Final[list[dict[str, Any]]] = [
    {"role": "user", "content": TASK},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "look", "arguments": json.dumps(ARGUMENTS)},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "A mug."},
    {"role": "assistant", "content": "It is on the desk."},
]
"""The episode with a call, as OpenAI's chat has it."""


_NO_FIELDS: Final = Fields()


@dataclass(frozen=True, slots=True)
class Sample:
    """A recording of one episode, and what import has to read in it.

    Attributes:
        write: writes its files into a folder.
        left_out: numbers of what was left out, in any words.
    """

    format: str
    write: Callable[[Path], None]
    messages: tuple[Message, ...]
    task: str
    reward: float = 1.0
    agent: str = ""
    terminated: bool = True
    fields: Fields = _NO_FIELDS
    left_out: tuple[int, ...] = ()


def dump(path: Path, *values: object) -> None:
    """Write values, one per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


def atif(folder: Path) -> None:
    """A trial of a Harbor job, in which the agent delegates once and thinks once."""
    trial = folder / "job" / "mug__abc"
    call = {"tool_call_id": "c1", "function_name": "look", "arguments": ARGUMENTS}
    results = [{"source_call_id": "c1", "content": [{"type": "text", "text": "A mug."}]}]
    steps = [
        {"step_id": 1, "source": "system", "message": SYSTEM.content},
        {"step_id": 2, "source": "user", "message": [{"type": "text", "text": TASK}]},
        {
            "step_id": 3,
            "source": "agent",
            "model_name": "m",
            "message": "I look.",
            "reasoning_content": "Mugs stand on desks.",
            "tool_calls": [call],
            "observation": {"results": results},
            "metrics": {"prompt_tokens": 12},
        },
        {
            "step_id": 4,
            "source": "agent",
            "message": "",
            "observation": {
                "results": [{"subagent_trajectory_ref": [{"session_id": "s2"}], "content": None}]
            },
        },
        {"step_id": 5, "source": "agent", "message": "It is on the desk."},
    ]
    agent = {"name": "terminus-2", "version": "2.0", "model_name": "m"}
    trajectory = {
        "schema_version": "ATIF-v1.7",
        "session_id": "s1",
        "agent": agent,
        "steps": steps,
        "final_metrics": {"total_steps": 5},
    }
    dump(trial / "agent" / "trajectory.json", trajectory)
    verdict = {"rewards": {"reward": 1.0}}
    result = {"task_name": "mug", "verifier_result": verdict, "exception_info": None}
    dump(trial / "result.json", result)
    dump(folder / "job" / "config.json", {"n_attempts": 1})


def tau_bench(folder: Path) -> None:
    """Results of tau-bench: a list of runs."""
    traj = [{"role": "system", "content": SYSTEM.content}, *CHAT]
    run = {"task_id": 7, "reward": 1.0, "info": {"task": {}}, "traj": traj, "trial": 0}
    (folder / "gpt.json").write_text(json.dumps([run], indent=2))


def tau2_bench(folder: Path) -> None:
    """Results of tau2-bench, in which the user calls a tool of its own, too."""
    call = {"id": "c1", "name": "look", "arguments": ARGUMENTS, "requestor": "assistant"}
    own = {"id": "u1", "name": "reboot", "arguments": {}, "requestor": "user"}
    messages = [
        {"role": "assistant", "content": "Hi! How can I help?", "tool_calls": None, "turn_idx": 0},
        {"role": "user", "content": TASK, "tool_calls": None, "turn_idx": 1},
        {"role": "assistant", "content": "I look.", "tool_calls": [call], "turn_idx": 2},
        {"role": "tool", "id": "c1", "content": "A mug.", "requestor": "assistant", "error": False},
        {"role": "user", "content": None, "tool_calls": [own]},
        {"role": "tool", "id": "u1", "content": "ok", "requestor": "user", "error": False},
        {"role": "assistant", "content": "It is on the desk.", "tool_calls": None},
    ]
    results = {
        "timestamp": "2026-01-01",
        "info": {
            "agent_info": {"implementation": "llm_agent", "llm": "gpt"},
            "environment_info": {"domain_name": "retail", "policy": SYSTEM.content},
        },
        "tasks": [{"id": "7"}],
        "simulations": [
            {
                "id": "s",
                "task_id": "7",
                "trial": 0,
                "termination_reason": "max_steps",
                "reward_info": {"reward": 0.0},
                "messages": messages,
            }
        ],
    }
    dump(folder / "results.json", results)


def swe_agent(folder: Path) -> None:
    """A trajectory of SWE-agent with function calls, without a reward."""
    history: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM.content, "agent": "main", "message_type": "system"},
        {"role": "user", "content": [{"type": "text", "text": TASK}], "agent": "main"},
        {
            **CHAT[1],
            "thought": "I look.",
            "action": "look desk",
            "agent": "main",
            "message_type": "action",
        },
        {
            "role": "tool",
            "content": [{"type": "text", "text": "A mug."}],
            "agent": "main",
            "message_type": "observation",
            "tool_call_ids": ["c1"],
        },
        {**CHAT[3], "thought": "", "action": "submit", "tool_calls": None, "agent": "main"},
    ]
    info = {"exit_status": "submitted (exit_cost)", "submission": "diff"}
    traj = {"environment": "swe_main", "trajectory": [{"action": "look desk"}], "history": history}
    path = folder / "django__django-1" / "django__django-1.traj"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**traj, "info": info}, indent=2))


def mini_swe_agent(folder: Path) -> None:
    """A trajectory of mini-swe-agent, which ends with a note of its own."""
    messages = [
        {"role": "system", "content": SYSTEM.content},
        {"role": "user", "content": TASK, "extra": {"timestamp": 1}},
        {"role": "assistant", "content": "look desk", "extra": {"response": {}}},
        {"role": "user", "content": "A mug."},
        {"role": "assistant", "content": "take mug"},
        {"role": "user", "content": "Taken."},
        {"role": "exit", "content": "diff", "extra": {"exit_status": "Submitted"}},
    ]
    config = {"model": {"model_name": "gpt"}}
    info = {"exit_status": "Submitted", "submission": "diff", "config": config}
    traj = {"info": info, "messages": messages, "trajectory_format": "mini-swe-agent-1.1"}
    (folder / "astropy__astropy-7.traj.json").write_text(json.dumps(traj, indent=2))


def openhands(folder: Path) -> None:
    """A line of an evaluation with the events of OpenHands' agent SDK."""
    text = {"type": "text", "text": TASK}
    history = [
        {"kind": "ConversationStateUpdateEvent", "key": "stats", "value": {}},
        {
            "kind": "SystemPromptEvent",
            "source": "agent",
            "system_prompt": {"type": "text", "text": SYSTEM.content},
            "tools": [],
        },
        {
            "kind": "MessageEvent",
            "source": "user",
            "llm_message": {"role": "user", "content": [text]},
        },
        {
            "kind": "ActionEvent",
            "source": "agent",
            "thought": [{"type": "text", "text": "I look."}],
            "tool_name": "look",
            "tool_call_id": "c1",
            "tool_call": {"id": "c1", "name": "look", "arguments": json.dumps(ARGUMENTS)},
            "action": {"kind": "LookAction", **ARGUMENTS},
            "llm_response_id": "r1",
        },
        {
            "kind": "ObservationEvent",
            "source": "environment",
            "tool_name": "look",
            "tool_call_id": "c1",
            "observation": {"content": [{"type": "text", "text": "A mug."}]},
            "action_id": "a1",
        },
        {
            "kind": "MessageEvent",
            "source": "agent",
            "llm_message": {
                "role": "assistant",
                "content": [{"type": "text", "text": "It is on the desk."}],
            },
        },
    ]
    row = {"instance_id": "mug-1", "history": history, "test_result": {"git_patch": ""}}
    dump(folder / "output.jsonl", {**row, "error": None, "report": {"resolved": True}})


def openhands_v0(folder: Path) -> None:
    """The same with the events of earlier versions."""
    metadata = {
        "tool_call_id": "c1",
        "function_name": "look",
        "model_response": {"choices": [{"message": CHAT[1]}]},
    }
    history = [
        {"id": 0, "source": "agent", "action": "system", "args": {"content": SYSTEM.content}},
        {"id": 1, "source": "user", "action": "message", "args": {"content": TASK}},
        {"id": 2, "source": "environment", "observation": "agent_state_changed", "content": ""},
        {
            "id": 3,
            "source": "agent",
            "action": "look",
            "args": ARGUMENTS,
            "tool_call_metadata": metadata,
        },
        {
            "id": 4,
            "source": "agent",
            "observation": "look",
            "content": "A mug.",
            "cause": 3,
            "tool_call_metadata": metadata,
        },
        {"id": 5, "source": "agent", "action": "message", "args": {"content": CHAT[3]["content"]}},
    ]
    row = {"instance_id": "mug-1", "history": history, "metadata": {"agent_class": "CodeActAgent"}}
    dump(folder / "output.jsonl", {**row, "test_result": {"report": {"resolved": False}}})


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
            "tool_calls": [
                {"id": "c1", "function": "look", "arguments": ARGUMENTS, "type": "function"}
            ],
        },
        {"role": "tool", "content": "A mug.", "tool_call_id": "c1", "function": "look"},
        {"role": "assistant", "content": "It is on the desk.", "source": "generate"},
    ],
    "scores": {"match": {"value": "C", "answer": "desk"}},
    "metadata": {},
    "events": [],
}
INSPECT_HEADER: Final = {
    "version": 2,
    "status": "success",
    "eval": {"task": "finding", "model": "gpt"},
}


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
        {
            "lc": 1,
            "type": "constructor",
            "id": ["langchain", "schema", "messages", kind],
            "kwargs": said,
        }
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
        "mlflow.spanOutputs": json.dumps(
            {"object": "chat.completion", "choices": [{"index": 0, "message": CHAT[3]}]}
        ),
    }
    root = {"mlflow.spanType": '"AGENT"', "mlflow.spanInputs": '{"question": 1}'}
    trace = {
        "info": {
            "trace_id": "tr-1",
            "tags": {"case": "mug"},
            "assessments": [
                {"assessment_name": "correct", "feedback": {"value": True}, "trace_id": "tr-1"}
            ],
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
        {
            "message.role": "assistant",
            "message.content": "I look.",
            "message.tool_calls": [call],
        },
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


def intercode(folder: Path) -> None:
    """Results of InterCode: an object of episodes."""
    history = {
        "actions": ["look desk", "take mug"],
        "observations": ["A mug.", "Taken."],
        "rewards": [0.2, 1.0],
        "valid_action": [True, True],
    }
    summary = {"max_reward": 1.0, "max_reward_idx": 1, "turns_taken": 2, "turns_max": 2}
    episode = {
        "environment": "ic_bash",
        "dataset": "d.json",
        "task_id": 3,
        "query": TASK,
        "turn_history": history,
        "summary": summary,
    }
    (folder / "ic_bash.json").write_text(json.dumps({"0": episode}, indent=2))


def mint(folder: Path) -> None:
    """An episode of MINT as the recordings beside the project have it."""
    history = [{"role": m.role, "content": m.content} for m in SAID]
    row = {"set": "reasoning/x", "task_id": 3, "model": "gpt", "success": 1, "history": history}
    dump(folder / "episodes.jsonl", row)


def mint_run(folder: Path) -> None:
    """A line of MINT's own results."""
    history = [{"role": m.role, "content": m.content} for m in SAID]
    state = {"history": history, "success": True, "finished": True, "terminate_reason": "done"}
    dump(folder / "results.jsonl", {"state": state, "task": {"task_id": "3", "prompt": TASK}})


def trl(folder: Path) -> None:
    """TRL's unpaired preferences, which KTO trains on."""
    prompt, completion = [CHAT[0]], [CHAT[3]]
    dump(folder / "kto.jsonl", {"prompt": prompt, "completion": completion, "label": True})


def verl(folder: Path) -> None:
    """A line of what verl writes into its `rollout_data_dir`."""
    row = {"input": TASK, "output": "It is on the desk.", "score": 1.0, "step": 4, "gts": "desk"}
    dump(folder / "4.jsonl", row)


def terminal_bench(folder: Path) -> None:
    """A run of Terminal-Bench with Terminus' logs; the run's own result repeats its trials."""
    trial = folder / "run" / "mug" / "mug.1-of-1.run"
    result = {
        "trial_name": "mug.1-of-1.run",
        "task_id": "mug",
        "instruction": TASK,
        "is_resolved": False,
        "failure_mode": "agent_timeout",
        "recording_path": None,
    }
    (trial / "agent-logs").mkdir(parents=True)
    (trial / "results.json").write_text(json.dumps(result, indent=4))
    (folder / "run" / "results.json").write_text(json.dumps({"results": [result]}, indent=4))
    for number, (prompt, answer) in enumerate(((TASK, "look desk"), ("A mug.", "take mug"))):
        episode = trial / "agent-logs" / f"episode-{number}"
        episode.mkdir()
        (episode / "prompt.txt").write_text(prompt)
        (episode / "response.txt").write_text(answer)


BFCL_FUNCTIONS: Final = [{"name": "look", "parameters": {"type": "dict"}}]


def bfcl(folder: Path) -> None:
    """A clone of BFCL's results: one model was right, the other's score has the question."""
    prompt = {"id": "simple_0", "question": [[CHAT[0]]], "function": BFCL_FUNCTIONS}
    for model in ("right", "wrong"):
        result = [{"look": json.dumps(ARGUMENTS)}]
        name = f"{model}/non_live/BFCL_v4_simple_result.json"
        dump(folder / "result" / name, {"id": "simple_0", "result": result})
    failure = {"id": "simple_0", "valid": False, "prompt": prompt, "error": ["wrong"]}
    scores = folder / "score"
    dump(scores / "right/non_live/BFCL_v4_simple_score.json", {"accuracy": 1.0})
    dump(scores / "wrong/non_live/BFCL_v4_simple_score.json", {"accuracy": 0.0}, failure)


FOUND: Final = Fields(reward="scores.correct")
SAMPLES: Final = (
    Sample("atif", atif, (SYSTEM, *CALLED), "mug", agent="terminus-2", left_out=(1, 1, 1)),
    Sample("tau-bench", tau_bench, (SYSTEM, *CALLED), "7"),
    Sample(
        "tau2-bench",
        tau2_bench,
        (SYSTEM, *CALLED),
        "retail/7",
        reward=0.0,
        agent="gpt",
        terminated=False,
        left_out=(2, 1),
    ),
    Sample(
        "swe-agent",
        swe_agent,
        (SYSTEM, *CALLED),
        "django__django-1",
        agent="SWE-agent",
        terminated=False,
        fields=Fields(outcomes={"django__django-1": 1.0}),
    ),
    Sample(
        "mini-swe-agent",
        mini_swe_agent,
        (SYSTEM, *SAID),
        "astropy__astropy-7",
        agent="gpt",
        fields=Fields(outcomes={"astropy__astropy-7": 1.0}),
        left_out=(1,),
    ),
    Sample("openhands", openhands, (SYSTEM, *CALLED), "mug-1", left_out=(1,)),
    Sample(
        "openhands",
        openhands_v0,
        (SYSTEM, *CALLED),
        "mug-1",
        reward=0.0,
        agent="CodeActAgent",
        left_out=(1,),
    ),
    Sample("inspect", inspect_eval, (SYSTEM, *CALLED), "finding/mug", agent="gpt", left_out=(1,)),
    Sample("inspect", inspect_json, (SYSTEM, *CALLED), "finding/mug", agent="gpt", left_out=(1,)),
    Sample("langfuse", langfuse, CALLED, "", fields=FOUND),
    Sample(
        "langfuse",
        langfuse_trace,
        CALLED,
        "mug",
        fields=Fields("scores.correct", "metadata.case"),
    ),
    Sample(
        "langsmith",
        langsmith,
        CALLED,
        "mug",
        fields=Fields("feedback_stats.correct.avg", "extra.metadata.case"),
    ),
    Sample("mlflow", mlflow, CALLED, "mug", fields=Fields("assessments.correct", "tags.case")),
    Sample("phoenix", phoenix, CALLED, "mug", fields=Fields("metadata.correct", "metadata.case")),
    Sample(
        "phoenix",
        phoenix_flat,
        ASKED,
        "mug",
        fields=Fields("annotations.correct", "metadata.case"),
    ),
    Sample("intercode", intercode, SAID, "ic_bash/d.json/3"),
    Sample("mint", mint, SAID, "reasoning/x/3", agent="gpt"),
    Sample("mint-run", mint_run, SAID, "3"),
    Sample("trl", trl, ASKED, ""),
    Sample("verl", verl, ASKED, ""),
    Sample("terminal-bench", terminal_bench, SAID[:4], "mug", reward=0.0, terminated=False),
)
