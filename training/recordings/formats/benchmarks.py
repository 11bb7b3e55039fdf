"""Results of benchmarks and RL environments as plain records, such as tau2-bench, InterCode, Inspect and verifiers."""

import re
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from io import TextIOWrapper
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, cast

from qguide.qnet.errors import ConfigError, RecordError
from qguide.training.data.row_files import address_of, found_below, is_file, open_file, size_of
from qguide.training.recordings import json_stream
from qguide.training.recordings.fields import first_at, value_at
from qguide.training.recordings.formats.layout import Record
from qguide.training.recordings.json_stream import FIRST, OnBytes, Value, parse_bytes, read_values
from qguide.training.recordings.otel_spans import objects_in

GREETINGS: Final = "greetings of the agent before the user's first message"
USERS_CALLS: Final = "calls of the simulated user's own tools, and their results"
_GRADES: Final = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Inspect's grades: correct, partly, incorrect, no answer."""
_LIMITED: Final = (
    *("max_steps", "too_many_errors", "timeout", "context_window_exceeded"),
    *("agent_error", "user_error", "infrastructure_error", "unexpected_error"),
)


_SIMULATIONS: Final = "simulations"
_RESULTS: Final = "results.json"


def refuse_lone_simulations(paths: Sequence[Path]) -> None:
    """Refuse simulations of tau2-bench without the results that tell their domain and the agent's policy."""
    folder = paths[0].parent
    if all(path.parent == folder for path in paths) and _has_results(folder):
        raise ConfigError(
            f"{address_of(folder) or folder} holds simulations of tau2-bench, and {folder.parent / _RESULTS} tells "
            f"their domain and the agent's policy; name {address_of(folder.parent) or folder.parent}"
        )


def _has_results(folder: Path) -> bool:
    return folder.name == _SIMULATIONS and is_file(folder.parent / _RESULTS)


def read_simulations(path: Path, on_bytes: OnBytes) -> Iterator[Value]:
    """The simulations of a file of results, or those that have files of their own in the folder beside it."""
    if _has_results(path.parent):
        return  # read with the results
    files = found_below(path.parent / _SIMULATIONS, "*.json")
    if not files:
        yield from read_values(path, within=_SIMULATIONS, keeping=("info",), on_bytes=on_bytes)
        return
    info = None
    for field in read_values(path, within=FIRST, on_bytes=on_bytes):
        if field.flaw:
            yield field
        elif field.around["@key"] == "info":
            info = field.value
    for file in files if info else ():
        for value in read_values(file, on_bytes=on_bytes):
            yield replace(value, flaw=value.flaw and f"{file.name}: {value.flaw}", around={"info": info})


def tau2_records(record: Record) -> Iterator[Record]:
    """A simulation of tau2-bench; the policy that the agent obeys is its system message."""
    if record.get("messages") is None:
        raise RecordError("it has no messages: simulations by voice keep ticks, pieces of speech that are not read")
    turns: list[Record] = []
    greetings = users_calls = 0
    for said in _flat(record["messages"]):
        if said["role"] == "assistant" and not turns:
            greetings += 1
        elif said.get("requestor") == "user" or (said["role"] == "user" and said.get("tool_calls")):
            users_calls += 1
        else:
            turns.append(_tau2_turn(said))
    policy = first_at(record, ("policy", "info.environment_info.policy"))
    domain = value_at(record, "info.environment_info.domain_name")
    task = record.get("task_id")
    yield {
        "messages": turns,
        "instructions": policy,
        "reward": value_at(record, "reward_info.reward"),
        "task_id": f"{domain}/{task}" if domain and task is not None else task,
        "source": value_at(record, "info.agent_info.llm"),
        "terminated": _ended(record.get("termination_reason"), cut=_LIMITED),
        "left_out": {GREETINGS: greetings, USERS_CALLS: users_calls},
    }


def _flat(messages: list[Any]) -> Iterator[Any]:
    """Messages; several results at once are one of tau2's messages."""
    for said in messages:
        yield from said.get("tool_messages") or [said]


def _tau2_turn(said: Record) -> Record:
    turn = {"role": said["role"], "content": said.get("content") or ""}
    if said["role"] == "tool":
        return {**turn, "tool_call_id": said.get("id")}
    return {**turn, "tool_calls": said.get("tool_calls")}


_ASKED: Final = "query"


def intercode_records(record: Record) -> Iterator[Record]:
    """An episode of InterCode; its best reward counts, as its authors count.

    What the environment would have said to a last action that was blocked was not recorded. Runs
    that plan first keep all episodes in one object, beside their settings.
    """
    if _ASKED not in record:
        for one in record.values():
            if isinstance(one, dict) and _ASKED in one:
                yield from intercode_records(one)
        return
    history, summary = record["turn_history"], record.get("summary") or {}
    turns: list[Record] = [{"role": "user", "content": record[_ASKED]}]
    for action, observation in zip_longest(history["actions"], history["observations"]):
        turns.append({"role": "assistant", "content": action.strip() or "(nothing)"})
        if observation is not None:
            turns.append({"role": "user", "content": str(observation).strip() or "(no output)"})
    reward = summary.get("max_reward", max(history["rewards"], default=None))
    most = summary.get("turns_max")
    yield {
        "messages": turns,
        "reward": reward,
        "task_id": f"{record['environment']}/{record.get('dataset')}/{record['task_id']}",
        "terminated": True if reward == 1 else None if most is None else len(history["actions"]) < most,
    }


_THOUGHT: Final = re.compile(r"^(?=Thought:)", re.M)


def fireact_records(record: Record) -> Iterator[Record]:
    """A question of FireAct; what came last is left out, because it tells the reward."""
    turns: list[Record] = record["traj"]
    if isinstance(record["traj"], str):
        asked, _, said = record["traj"].partition("\n\n### Response:\n")
        turns = [{"role": "user", "content": asked.rpartition("### Instruction:\n")[2]}]
        for step in filter(str.strip, _THOUGHT.split(said)):
            action, _, observation = step.partition("\nObservation:")
            turns.append({"role": "assistant", "content": action.strip()})
            turns.append({"role": "user", "content": f"Observation:{observation.rstrip()}"})
    question = turns[0]["content"].strip()
    yield {
        "messages": [{**turns[0], "content": question}, *turns[1:-1]],
        "reward": float(record["reward"]),
        "task_id": f"hotpotqa/{zlib.crc32(question.encode())}",
    }


BRANCHES: Final = "branches before the last one of a trace: subagents, and what was cut out of the history"
_CUT: Final = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "context_length", "error")


def verifiers_records(record: Record) -> Iterator[Record]:
    """The agents' traces of an episode of verifiers v1; those that train no policy, such as a judge's, are left out.

    A trace is a graph of messages, of which its last branch is the episode. Its reward is the weighted sum.
    """
    for trace in record["traces"]:
        if trace["agent"].get("trainable") is False or not trace["nodes"]:
            continue
        nodes = trace["nodes"]
        rewards = [reward["score"] * reward.get("weight", 1.0) for reward in trace["rewards"].values() if reward]
        task = first_at(record, ("task.key", "task.hash"))
        env = value_at(record, "env.id")
        yield {
            "messages": [_verifiers_turn(node) for node in _last_branch(nodes)],
            "reward": sum(rewards) if rewards else None,
            "task_id": f"{env}/{task}" if env and task else task,
            "source": first_at(trace, ("calls.0.model", "agent.config.model")),
            "terminated": _ended(trace.get("stop_condition"), cut=_CUT),
            "left_out": {BRANCHES: len(nodes) - len({node.get("parent") for node in nodes} - {None}) - 1},
        }


def _last_branch(nodes: list[Any]) -> list[Any]:
    """The path from a root to the last node, which no other can follow."""
    path = [place := len(nodes) - 1]
    while (parent := nodes[place].get("parent")) is not None:
        if not 0 <= parent < place:
            raise RecordError(f"node {place} of a trace follows node {parent}, which is not before it")
        path.append(place := parent)
    return [nodes[place] for place in reversed(path)]


def _verifiers_turn(node: Record) -> Record:
    """A message; a reply that no model of the trace gave is not to be imitated."""
    message = node["message"]
    made_up = message["role"] == "assistant" and not node.get("sampled")
    return {**message, "logprobs": node.get("logprobs") or None, **({"weight": 0} if made_up else {})}


def inspect_records(record: Record) -> Iterator[Record]:
    """A sample of an Inspect log; its reward is its first score."""
    task = value_at(record, "eval.task")
    yield {
        "messages": record["messages"],
        "reward": graded(value_at(record, "scores.*.value")),
        "task_id": f"{task}/{record['id']}" if task else record["id"],
        "source": value_at(record, "eval.model"),
        "terminated": not (record.get("limit") or record.get("error")),
    }


def _ended(status: object, *, cut: Collection[object]) -> bool | None:
    """False of an episode that was cut off; None if the recording has no status, or one that says nothing."""
    return None if status in (None, "unset", "unknown") else status not in cut


def graded(value: object) -> object:
    """A score as a number, if it is a grade or a boolean."""
    if isinstance(value, bool):
        return float(value)
    return _GRADES.get(value, value) if isinstance(value, str) else value


_LOGS: Final = "agent-logs"
_EPISODES: Final = "episode-*"
_FAILED: Final = (
    *("agent_timeout", "context_length_exceeded", "output_length_exceeded"),
    *("agent_installation_failed", "fatal_llm_parse_error", "unknown_agent_error"),
)
"""Failures of the agent; those of the tests come after it has ended."""
_SCREEN: Final = 8_000
"""Characters of a terminal that are read, from its end: where the tests have not run yet."""


def read_trials(path: Path, on_bytes: OnBytes) -> Iterator[Value]:
    """The trial of a `results.json`; that of a whole run only repeats its trials."""
    for value in read_values(path, on_bytes=on_bytes):
        row = value.value
        if isinstance(row, dict) and "trial_name" not in row:
            continue
        yield Value(value.line, row, value.flaw, {"@trial": path.parent})


def trial_records(record: Record) -> Iterator[Record]:
    """A trial: the prompts and answers that its agent left, as Terminus does, else what its terminal showed last."""
    trial: Path = record["@trial"]
    found = found_below(trial / _LOGS, _EPISODES, folders=True)
    folders = sorted(found, key=lambda folder: int(folder.name.rpartition("-")[2]))
    turns: list[Record] = []
    for folder in folders:
        asked, answered = _text(folder / "prompt.txt"), _text(folder / "response.txt")
        if asked and answered:
            turns.append({"role": "user", "content": asked})
            turns.append({"role": "assistant", "content": answered})
    if not turns:
        screen = _text(trial / "panes/post-agent.txt").rstrip()
        if screen == _text(trial / "panes/pre-agent.txt").rstrip():
            raise RecordError(
                f"it has no {_LOGS}/{_EPISODES}/response.txt, and panes/post-agent.txt shows nothing that its agent did"
            )
        turns = [
            {"role": "user", "content": record["instruction"]},
            {"role": "assistant", "content": screen[-_SCREEN:]},
        ]
    yield {
        "messages": turns,
        "reward": None if record["is_resolved"] is None else float(record["is_resolved"]),
        "task_id": record["task_id"],
        "terminated": _ended(record.get("failure_mode"), cut=_FAILED),
    }


def _text(path: Path) -> str:
    if not is_file(path):
        return ""
    with open_file(path) as file, TextIOWrapper(cast(Any, file), encoding="utf-8", errors="replace") as text:
        return text.read(json_stream.MOST_BYTES)


def read_model_calls(path: Path, on_bytes: OnBytes) -> Iterator[Value]:
    """The last of a task's calls to the model in AppWorld, which asks with the whole history."""
    last = Value(0)
    for call in read_values(path, on_bytes=on_bytes):
        before = _asked(last)
        if not call.flaw and before != _asked(call)[: len(before)]:
            told = f"the call in line {last.line} does not lead to it; each needs its whole history"
            call = Value(call.line, flaw=told)
        last = call
        if call.flaw:
            break
    if last.line:
        yield last


def _asked(call: Value) -> list[tuple[Any, ...]]:
    """Messages of a call, without what differs from call to call, such as marks of a cache."""
    messages = objects_in(value_at(call.value, "input.messages"))
    return [(said.get("role"), said.get("content"), said.get("tool_calls") or None) for said in messages]


def appworld_records(record: Record) -> Iterator[Record]:
    """A task of AppWorld, named by the folder around its logs; a last call that failed has no answer."""
    failed = "error" in record["output"]
    answer = [] if failed else [record["output"]["choices"][0]["message"]]
    yield {
        "messages": [*record["input"]["messages"], *answer],
        "reward": None,
        "task_id": record["@folders"][1],
        "source": record["input"].get("model"),
        "terminated": False if failed else None,
    }


_HEADERS: Final = ("header.json", "_journal/start.json")
_KEPT: Final = ("eval",)
_UNREADABLE: Final = (
    OSError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,  # another compression
    RuntimeError,  # it is encrypted
)


def read_samples(path: Path, on_bytes: OnBytes) -> Iterator[Value]:
    """The samples of a log, which may also be in Inspect's JSON format."""
    with open_file(path) as file:
        packed = zipfile.is_zipfile(file)
    if not packed:
        yield from read_values(path, within="samples", keeping=_KEPT, on_bytes=on_bytes)
        return
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as log:
            names = [info.filename for info in log.infolist()]
            header = next((name for name in _HEADERS if name in names), "")
            around = _header(_member(log, header)) if header else {}
            for name in names:
                if name.startswith("samples/") and name.endswith(".json"):
                    yield _sample(log, name, around)
    except _UNREADABLE as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    on_bytes(size_of(path))


def _sample(log: zipfile.ZipFile, name: str, around: dict[str, Any]) -> Value:
    found = _member(log, name)
    flaw = f"{name}: {found.flaw}" if found.flaw else ""
    return Value(1, found.value, flaw, around)


def _member(log: zipfile.ZipFile, name: str) -> Value:
    """One file of the log; one that unpacks to more than a value may hold is not unpacked."""
    with log.open(name) as file:
        text = file.read(json_stream.MOST_BYTES + 1)
    if len(text) > json_stream.MOST_BYTES:
        return Value(1, flaw=f"it has more than {json_stream.MOST_BYTES:,} bytes")
    return parse_bytes(text)


def _header(found: Value) -> dict[str, Any]:
    header = found.value if isinstance(found.value, dict) else {}
    return {name: header[name] for name in _KEPT if name in header}
