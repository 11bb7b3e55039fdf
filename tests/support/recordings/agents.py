"""Recordings of agents and their harnesses: Harbor, tau-bench, SWE-agent, OpenHands."""

import json
from pathlib import Path
from typing import Any, Final

from qguide.training.recordings.fields import Fields
from tests.support.recordings.sample import ARGUMENTS, CALLED, CHAT, SAID, SYSTEM, TASK, Sample, dump


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
            "observation": {"results": [{"subagent_trajectory_ref": [{"session_id": "s2"}], "content": None}]},
        },
        {"step_id": 5, "source": "agent", "message": "It is on the desk."},
    ]
    agent = {"name": "terminus-2", "version": "2.0", "model_name": "m"}
    trajectory = {
        "schema_version": "ATIF-v1.8",
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


def tau2_folder(folder: Path) -> None:
    """The same with each simulation in a file of its own, as runs by voice and submissions keep them."""
    tau2_bench(folder)
    results = json.loads((folder / "results.json").read_text())
    [simulation] = results.pop("simulations")
    entry = {key: simulation[key] for key in ("id", "task_id", "trial", "termination_reason")}
    index = [{**entry, "reward": 0.0, "agent_cost": None, "duration": 1.0}]
    dump(folder / "results.json", {**results, "simulation_index": index})
    (folder / "simulations").mkdir()
    dump(folder / "simulations/s.json", simulation)


def swe_agent(folder: Path) -> None:
    """A trajectory of SWE-agent with function calls, without a reward."""
    history: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM.content, "agent": "main", "message_type": "system"},
        {"role": "user", "content": [{"type": "text", "text": TASK}], "agent": "main"},
        {**CHAT[1], "thought": "I look.", "action": "look desk", "agent": "main", "message_type": "action"},
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
        {"kind": "MessageEvent", "source": "user", "llm_message": {"role": "user", "content": [text]}},
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
            "llm_message": {"role": "assistant", "content": [{"type": "text", "text": "It is on the desk."}]},
        },
    ]
    row = {"instance_id": "mug-1", "history": history, "test_result": {"git_patch": ""}}
    dump(folder / "output.jsonl", {**row, "error": None, "report": {"resolved": True}})


def openhands_v0(folder: Path) -> None:
    """The same with the events of earlier versions."""
    metadata = {"tool_call_id": "c1", "function_name": "look", "model_response": {"choices": [{"message": CHAT[1]}]}}
    history = [
        {"id": 0, "source": "agent", "action": "system", "args": {"content": SYSTEM.content}},
        {"id": 1, "source": "user", "action": "message", "args": {"content": TASK}},
        {"id": 2, "source": "environment", "observation": "agent_state_changed", "content": ""},
        {"id": 3, "source": "agent", "action": "look", "args": ARGUMENTS, "tool_call_metadata": metadata},
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


SAMPLES: Final = (
    Sample("atif", atif, (SYSTEM, *CALLED), "mug", agent="terminus-2", terminated=True, left_out=(1, 1, 1)),
    Sample("tau-bench", tau_bench, (SYSTEM, *CALLED), "7"),
    *(
        Sample(
            "tau2-bench",
            write,
            (SYSTEM, *CALLED),
            "retail/7",
            reward=0.0,
            agent="gpt",
            terminated=False,
            left_out=(2, 1),
        )
        for write in (tau2_bench, tau2_folder)
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
        terminated=True,
        fields=Fields(outcomes={"astropy__astropy-7": 1.0}),
        left_out=(1,),
    ),
    Sample("openhands", openhands, (SYSTEM, *CALLED), "mug-1", terminated=True, left_out=(1,)),
    Sample("openhands", openhands_v0, (SYSTEM, *CALLED), "mug-1", reward=0.0, agent="CodeActAgent", left_out=(1,)),
)
