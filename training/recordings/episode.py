"""An episode that an agent recorded, checked and completed.

It holds what a Q model reads when it is served: OpenAI's messages with tool calls and their
results. Consecutive messages of the assistant are one reply, and results without the ids of their
calls answer them in order.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from qguide.qnet.errors import RecordError
from qguide.qnet.types import INSTRUCTING, History, Message
from qguide.training.data.trajectories import Trajectory
from qguide.training.recordings.fields import Fields, first_at, stated_reward, stated_task, value_at
from qguide.training.recordings.turns import Turns, read_turns


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that is no episode.

    Attributes:
        line: the record's first line in the file, from 1.
        reason: without any text of the record, which may be private.
    """

    path: Path
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path.name}, line {self.line}: {self.reason}"


def build_episode(
    messages: Sequence[Message],
    *,
    reward: float,
    task_id: str = "",
    terminated: bool | None = None,
    source: str = "",
    ignored: Collection[int] = (),
    logprobs: Mapping[int, float] | None = None,
    left_out: Mapping[str, int] | None = None,
) -> Trajectory:
    """Check the messages of an episode and complete what its recording left out.

    Args:
        messages: from the system message or the task to the last reply, or what followed it.
        ignored: indices of the messages of the assistant that are not to be imitated.
        logprobs: of messages of the assistant, by index.
    """
    turns, not_imitated, likelihoods = _joined_replies(messages, ignored, logprobs or {})
    _check(turns)
    history = _linked(turns)
    replies = [index for index, message in enumerate(history) if message.role == "assistant"]
    counting = [index for index in replies if index not in not_imitated]
    start = history[: (counting or replies)[0]]
    return Trajectory(
        messages=history,
        reward=reward,
        task_id=task_id or hash_of(start),
        terminated=terminated,
        mistakes=tuple(n for n, index in enumerate(replies) if index in not_imitated),
        source=source,
        left_out=left_out or {},
        logprobs=likelihoods,
    )


def hash_of(messages: Sequence[Message]) -> str:
    """Task id of the episodes that begin with these messages."""
    text = json.dumps([message.key for message in messages])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _joined_replies(
    messages: Sequence[Message], ignored: Collection[int], logprobs: Mapping[int, float]
) -> tuple[list[Message], set[int], dict[int, float]]:
    """Consecutive messages of the assistant as one, the indices of ignored ones, and the likelihoods that are known."""
    turns: list[Message] = []
    not_imitated: set[int] = set()
    likelihoods: dict[int, float] = {}
    for index, message in enumerate(messages):
        if message.role == "assistant" and turns and turns[-1].role == "assistant":
            former = turns[-1]
            text = "\n".join(said for said in (former.content, message.content) if said)
            calls = former.tool_calls + message.tool_calls
            turns[-1] = replace(former, content=text, tool_calls=calls)
            likelihoods[len(turns) - 1] += logprobs.get(index, math.nan)
        else:
            turns.append(message)
            likelihoods[len(turns) - 1] = logprobs.get(index, math.nan)
        if index in ignored:
            not_imitated.add(len(turns) - 1)
    return turns, not_imitated, {index: total for index, total in likelihoods.items() if math.isfinite(total)}


def _check(turns: Sequence[Message]) -> None:
    if not turns:
        raise RecordError("it has no messages")
    for number, turn in enumerate(turns):
        if turn.role != "tool" and not turn.text.strip():
            raise RecordError(f"turn {number} ({turn.role}) is empty")
    spoken = [turn.role for turn in turns if turn.role not in INSTRUCTING]
    if "assistant" not in spoken:
        raise RecordError("it has no reply of the assistant")
    if spoken[0] != "user":
        raise RecordError(f"it begins with the role {spoken[0]!r}; begin with the user's task")


def _linked(turns: Sequence[Message]) -> History:
    linked: list[Message] = []
    waiting: list[str] = []
    drawn = 0
    for number, turn in enumerate(turns):
        if turn.role == "tool":
            turn = _answering(turn, waiting, number)
        elif waiting:
            raise RecordError(f"turn {number} ({turn.role}) comes before the results of {len(waiting)} tool calls")
        if turn.tool_calls:
            calls = []
            for call in turn.tool_calls:
                drawn += 1
                calls.append(replace(call, id=call.id or f"call-{drawn}"))
            turn = replace(turn, tool_calls=tuple(calls))
            waiting = [call.id for call in calls]
        linked.append(turn if turn.wire is None else replace(turn, wire=None))
    return tuple(linked)


def _answering(turn: Message, waiting: list[str], number: int) -> Message:
    """A tool's result with the id of its call, which is removed from `waiting`."""
    if not turn.tool_call_id and not waiting:
        return Message("user", turn.content)  # the call was a part of the reply's text
    call = turn.tool_call_id or waiting[0]
    if call not in waiting:
        raise RecordError(f"turn {number} is the result of a tool call that the reply did not make")
    waiting.remove(call)
    return replace(turn, tool_call_id=call)


_INSTRUCTIONS = ("system", "instructions")
"""Fields of a request's body that say what a chat's first message says."""


@dataclass(frozen=True, slots=True)
class Places:
    """The places of an episode's parts in a record.

    Attributes:
        rewards: the first one that has a value counts, and so on.
        graded: a reward that is true or false is 1 or 0; else it has to be named.
    """

    messages: str = "messages"
    rewards: tuple[str, ...] = ("reward",)
    tasks: tuple[str, ...] = ("task_id",)
    sources: tuple[str, ...] = ("source",)
    graded: bool = False


MESSAGES = Places()
PLAIN = Places(graded=True)
"""Those of a translated record, whose format says that its reward is one."""


def read_message_record(
    record: Mapping[str, Any], fields: Fields, places: Places = MESSAGES, *, told: Mapping[str, Any] | None = None
) -> Trajectory:
    """The episode of a record such as `{"messages": […], "reward": …, "task_id": …}`.

    Args:
        told: the record as it was before a translation, in which the operator names places.
    """
    told = record if told is None else told
    turns = _turns(record, fields, places, told)
    task_id = stated_task(told, fields.task) if fields.task else stated_task(record, *places.tasks)
    own = first_at(record, places.rewards)
    source = first_at(record, places.sources)
    return build_episode(
        turns.messages,
        reward=stated_reward(
            told,
            fields,
            own=float(own) if places.graded and isinstance(own, bool) else own,
            place=places.rewards[0],
            task_id=task_id,
        ),
        task_id=task_id,
        terminated=stated if isinstance(stated := record.get("terminated"), bool) else None,
        source=source if isinstance(source, str) else "",
        ignored=turns.ignored,
        logprobs=turns.logprobs,
        left_out=turns.left_out + Counter(record.get("left_out") or {}),
    )


def _turns(record: Mapping[str, Any], fields: Fields, places: Places, told: Mapping[str, Any]) -> Turns:
    """The messages, with the instructions that a request's body has beside them."""
    if fields.messages:
        turns = read_turns(value_at(told, fields.messages), fields.messages)
    else:
        turns = read_turns(value_at(record, places.messages), places.messages)
    said = first_at(record, _INSTRUCTIONS)
    begins = turns.messages[0].role if turns.messages else ""
    if said and isinstance(said, str | list) and begins not in INSTRUCTING:
        instructed = Turns()
        instructed.add({"role": "system", "content": said}, "system")
        turns.messages[:0] = instructed.messages
        turns.ignored = {index + len(instructed.messages) for index in turns.ignored}
        turns.logprobs = {index + len(instructed.messages): own for index, own in turns.logprobs.items()}
    return turns


def found_episodes(found: Iterable[Trajectory | BadRecord], *, skip_bad: bool) -> Iterator[Trajectory]:
    """The episodes among these; says on stderr how many records were left out."""
    bad, first = 0, ""
    for one in found:
        if not isinstance(one, BadRecord):
            yield one
        elif skip_bad:
            bad, first = bad + 1, first or str(one)
        else:
            raise RecordError(
                f"{one.path}, line {one.line}: {one.reason}; correct it, or leave such records out with --skip-bad or "
                "--set skip_bad=true"
            )
    if bad:
        Console(stderr=True).print(f"records left out: {bad:,}; the first: {first}", markup=False, soft_wrap=True)
