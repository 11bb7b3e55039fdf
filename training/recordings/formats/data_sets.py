"""Rows of data sets for training: ShareGPT, TRL, preference pairs, verl's rollouts, our own trees.

ShareGPT conversations are as ETO and AgentGym publish their trajectories:

    {"item_id": "webshop_17", "reward": 1.0, "conversations": [
        {"from": "human", "loss": null, "value": "…"}, {"from": "gpt", "loss": true, "value": "…"}]}

A reply with `"loss": false` is a part of the frame ("OK.") and is not imitated.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from qguide.qnet.errors import RecordError
from qguide.qnet.records import TreeRow
from qguide.qnet.types import Message, Role, ToolCall
from qguide.training.data.trajectories import Trajectory, trajectories_of
from qguide.training.recordings.episode import build_episode
from qguide.training.recordings.fields import Fields, first_at, flaw_of, stated_reward, stated_task, value_at
from qguide.training.recordings.formats.layout import Record
from qguide.training.recordings.json_stream import parse_text

_REWARDS = ("reward", "score", "label")


def prompt_records(record: Record) -> Iterator[Record]:
    """A prompt and its completion, each a text or messages; the label of TRL's KTO is a reward."""
    reward = first_at(record, _REWARDS)
    if "prompt" in record:
        turns = [*_turns(record["prompt"], "user"), *_turns(record["completion"], "assistant")]
    else:
        turns = [*_turns(record["input"], "user"), *_turns(record["output"], "assistant")]
    if "logprobs" in record and turns[-1].get("role") == "assistant":
        turns[-1] = {**turns[-1], "logprobs": record["logprobs"]}
    yield {
        "messages": turns,
        "reward": float(reward) if isinstance(reward, bool) else reward,
        "task_id": first_at(record, ("task_id", "uid", "index", "example_id")),
    }


def preference_records(record: Record) -> Iterator[Record]:
    """A preference: the preferred answer has the reward 1, the other one 0."""
    if "preferred_output" in record:
        prompt = _turns(record["input"]["messages"], "user")
        answers = (record["preferred_output"], record["non_preferred_output"])
    else:
        prompt = _turns(record["prompt"], "user") if record.get("prompt") else []
        answers = (record["chosen"], record["rejected"])
    for answer, reward in zip(answers, (1.0, 0.0), strict=True):
        turns = _turns(answer, "assistant")
        whole = bool(turns) and turns[0].get("role") in ("system", "developer", "user")
        yield {"messages": turns if whole else [*prompt, *turns], "reward": reward, "task_id": record.get("task_id")}


def _turns(said: Any, role: str) -> list[Record]:
    if isinstance(said, str):
        return [{"role": role, "content": said}]
    return list(said)


_TASK_FIELDS: Final = ("item_id", "task_id", "id")
_CALL: Final = "function_call"
_ROLES: Final[Mapping[str, Role]] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    _CALL: "assistant",
}


def read_sharegpt_record(record: Mapping[str, object], fields: Fields) -> Trajectory:
    """The episode of a record with `conversations`."""
    place = fields.messages or "conversations"
    turns = value_at(record, place)
    if not isinstance(turns, Sequence) or isinstance(turns, str):
        raise RecordError(f"{place} is not a list")
    messages = [_to_message(turn, index) for index, turn in enumerate(turns)]
    ignored = {i for i, turn in enumerate(turns) if turn.get("loss") is False}
    system = record.get("system")
    if isinstance(system, str) and system.strip():
        messages.insert(0, Message("system", system))
        ignored = {index + 1 for index in ignored}
    task_id = stated_task(record, *(fields.tasks or _TASK_FIELDS))
    own = record.get("reward")
    return build_episode(
        messages,
        reward=stated_reward(record, fields, own=own, place="reward", task_id=task_id),
        task_id=task_id,
        ignored=ignored,
    )


def _to_message(turn: object, index: int) -> Message:
    place = f"conversations[{index}]"
    if not isinstance(turn, Mapping):
        raise RecordError(f"{place} is not an object")
    speaker, value = turn.get("from"), turn.get("value")
    role = _ROLES.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        raise RecordError(f"{place}.from is none of {', '.join(_ROLES)}")
    if not isinstance(value, str):
        raise RecordError(f"{place}.value is not a text")
    return _call(value, place) if speaker == _CALL else Message(role, value)


def _call(value: str, place: str) -> Message:
    try:
        called = parse_text(value)
    except RecordError as error:
        raise RecordError(f"{place}.value is not a call as JSON: {error}") from error
    if not isinstance(called, dict) or not isinstance(called.get("name"), str):
        raise RecordError(f"{place}.value is not a call as JSON with a name and arguments")
    arguments = called.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Message("assistant", "", (ToolCall(called["name"], text),))


def read_tree_record(record: Mapping[str, object], fields: Fields) -> Iterator[Trajectory]:
    """The episodes of a tree, one per leaf; none if it is of an episode that is not asked for."""
    if fields.episodes and record.get("episode") not in fields.episodes:
        return
    if record.get("version") == 1:
        raise RecordError(
            "it is a record of version 1; stop the server that writes to this file, and run "
            "`qguide convert-records PATH`, which keeps every episode"
        )
    try:
        row = TreeRow.model_validate({name: value for name, value in record.items() if not name.startswith("@")})
    except ValidationError as error:
        raise RecordError(flaw_of(error)) from error
    if not row.tried:
        raise RecordError("it has no actions")
    task_id = stated_task(record, *(fields.tasks or ("task_id",))) or row.task_id
    for found in trajectories_of(row):
        yield replace(found, task_id=task_id)
