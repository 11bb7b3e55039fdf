"""Trajectories of coding agents as plain records: ATIF, SWE-agent, mini-swe-agent."""

from collections.abc import Iterator
from typing import Any, Final

from qguide.qnet.errors import RecordError
from qguide.training.exports.atif import RAW
from qguide.training.recordings.fields import first_at, value_at
from qguide.training.recordings.formats.layout import Record

SUBAGENTS: Final = "trajectories of subagents, which are episodes of their own"
OTHER_STEPS: Final = "steps without words or calls"
_SUBMITTED: Final = ("submitted", "Submitted")
_ATIF_ROLES: Final = {"system": "user", "user": "user", "agent": "assistant"}
_ATIF_REWARDS: Final = (
    "@beside.verifier_result.rewards.reward",
    "@beside.verifier_result.rewards.*",
    "extra.reward",
    "final_metrics.extra.reward",
)
_ATIF_TASKS: Final = ("extra.task_id", "@beside.task_name")


def atif_records(record: Record) -> Iterator[Record]:
    """An ATIF trajectory, its reward in Harbor's `result.json` above it or in `extra`."""
    turns: list[Record] = []
    left_out: dict[str, int] = {}
    for step in record["steps"]:
        results = value_at(step, "observation.results") or []
        delegated = sum(bool(one.get("subagent_trajectory_ref")) for one in results)
        left_out[SUBAGENTS] = left_out.get(SUBAGENTS, 0) + delegated
        said = list(_atif_turns(step, results, first=not turns))
        left_out[OTHER_STEPS] = left_out.get(OTHER_STEPS, 0) + (not said)
        turns += said
    yield {
        "messages": turns,
        "reward": first_at(record, _ATIF_REWARDS),
        "task_id": first_at(record, _ATIF_TASKS),
        "source": value_at(record, "agent.name"),
        "terminated": not beside["exception_info"]
        if "exception_info" in (beside := record.get("@beside") or {})
        else value_at(record, "extra.terminated"),
        "left_out": left_out,
    }


def _atif_turns(step: Record, results: list[Record], *, first: bool) -> Iterator[Record]:
    """The messages of a step; instructions are only those at the beginning."""
    source = step["source"]
    role = "system" if source == "system" and first else _ATIF_ROLES[source]
    calls = [_atif_call(call) for call in step.get("tool_calls") or ()]
    message = step.get("message") or ""
    if message or calls:
        turn: dict[str, Any] = {"role": role, "content": message}
        if calls:
            turn["tool_calls"] = calls
        if known := value_at(step, "metrics.logprobs"):
            turn["logprobs"] = known
        if step.get("reasoning_content"):
            turn["reasoning_content"] = step["reasoning_content"]
        copied = step.get("is_copied_context") or step.get("llm_call_count") == 0
        if copied or value_at(step, "extra.weight") == 0:
            turn["weight"] = 0
        yield turn if role == "assistant" else {"role": role, "content": message}
    yield from _atif_results(calls, results)


def _atif_call(call: Record) -> dict[str, Any]:
    given = call.get("arguments")
    if isinstance(given, dict) and given.keys() == {RAW}:
        given = given[RAW]
    function = {"name": call["function_name"], "arguments": given}
    return {"id": call["tool_call_id"], "function": function}


def _atif_results(calls: list[dict[str, Any]], results: list[Record]) -> Iterator[Record]:
    """The observation: a result of each call, or a message of the user without any.

    Some agents observe the whole screen after several calls; that is the result of the last one.
    """
    known = {one["source_call_id"]: one for one in results if one.get("source_call_id")}
    others = [one.get("content") or "" for one in results if not one.get("source_call_id")]
    if unknown := known.keys() - {call["id"] for call in calls}:
        raise RecordError(f"an observation answers call {min(unknown)!r}, which its step has not")
    if not calls:
        yield from ({"role": "user", "content": content} for content in others if content)
        return
    for call in calls:
        found = known.get(call["id"])
        content = found.get("content") or "" if found else ""
        if found is None and (len(others) == len(calls) or call is calls[-1]):
            content = others.pop(0) if others else ""
        if results:
            yield {"role": "tool", "tool_call_id": call["id"], "content": content}


def swe_agent_records(record: Record) -> Iterator[Record]:
    """A `.traj` of SWE-agent; its reward is in the report of an evaluation."""
    yield {
        "messages": [_swe_turn(turn) for turn in record["history"]],
        "reward": None,
        "task_id": first_at(record, ("instance_id", "@file")),
        "source": "SWE-agent",
        "terminated": _submitted(record),
    }


def _submitted(record: Record) -> bool | None:
    status = value_at(record, "info.exit_status")
    return None if status is None else status in _SUBMITTED


def _swe_turn(turn: Record) -> Record:
    ids = turn.get("tool_call_ids") or [None]
    demonstrated = {"weight": 0} if turn.get("is_demo") else {}
    kept = {name: turn[name] for name in ("role", "content", "tool_calls") if turn.get(name)}
    return {"content": "", **kept, "tool_call_id": ids[0], **demonstrated}


def mini_swe_records(record: Record) -> Iterator[Record]:
    """A trajectory of mini-swe-agent; its reward is in the report of an evaluation."""
    said = [
        turn for turn in record["messages"] if turn.get("role") != "exit" and not value_at(turn, "extra.exit_status")
    ]
    yield {
        "messages": said,
        "reward": None,
        "task_id": first_at(record, ("instance_id", "info.instance_id", "@file")),
        "source": value_at(record, "info.config.model.model_name"),
        "terminated": _submitted(record),
        "left_out": {"the note that the agent has ended": len(record["messages"]) - len(said)},
    }
