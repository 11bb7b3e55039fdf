"""Episodes from OpenTelemetry GenAI spans (an OTLP/JSON file export).

The requests of one conversation id, or of one trace without such an id, are an episode: each asks
with the whole history, in which agents change earlier texts. The reward is an attribute that the
operator names, on any span of the conversation or of its trace.
"""

import json
import tempfile
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Final

from qguide.qnet.chat_messages import PART_END
from qguide.qnet.continuation import KnownState
from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.records import MessageRow, messages_of, rows_of
from qguide.qnet.types import History, Message
from qguide.training.data.trajectories import Trajectory
from qguide.training.recordings.episode import BadRecord, build_episode
from qguide.training.recordings.fields import Fields, require_a_task, to_reward, to_task_id, translated, value_at
from qguide.training.recordings.json_stream import OnBytes, read_values
from qguide.training.recordings.otel_spans import AGENT, CONVERSATION, Fragment, fragments_of

_NAMED: Final = "conversation "
"""Before the name of a conversation, which may be that of a trace."""


@dataclass(slots=True)
class _Request:
    """One request to a model, put together from its fragments; `file` is its number among the paths."""

    file: int
    line: int
    time_ns: int
    asked: list[Message]
    answered: list[Message]
    flaw: str = ""
    agent: str = ""


@dataclass(slots=True)
class _Stated:
    """Rewards, task ids and ids of outcomes that the spans of one conversation or trace state."""

    rewards: set[float] = field(default_factory=set)
    task_ids: set[str] = field(default_factory=set)
    outcome_ids: set[str] = field(default_factory=set)
    flaw: str = ""


def read_spans(
    paths: Sequence[Path],
    fields: Fields,
    fragments: Callable[[object], Iterator[Fragment]] = fragments_of,
    *,
    on_bytes: OnBytes = lambda count: None,
) -> Iterator[Trajectory | BadRecord]:
    """The episodes of these exports, in the order of their first spans."""
    if not fields.reward and fields.default_reward is None and not fields.outcomes:
        raise ConfigError(
            "spans have no reward of their own; name the attribute that holds it, such as "
            "--reward-key gen_ai.evaluation.score.value, or give --default-reward"
        )
    with tempfile.TemporaryFile("w+b") as spool:
        conversations = _Conversations(spool, fields, paths)
        for number, path in enumerate(paths):
            for value in read_values(path, on_bytes=on_bytes):
                try:
                    if value.flaw:
                        raise RecordError(value.flaw)
                    for fragment in translated(fragments, value.value):
                        conversations.add(fragment, number, value.line)
                except RecordError as error:
                    yield BadRecord(path, value.line, str(error))
        yield from conversations.episodes()


class _Conversations:
    """Fragments of requests by conversation; their messages wait in a file, not in memory."""

    def __init__(self, spool: IO[bytes], fields: Fields, paths: Sequence[Path]) -> None:
        self._spool = spool
        self._fields = fields
        self._paths = paths
        self._offsets: dict[tuple[str, str], array[int]] = {}
        self._id_of_span: dict[tuple[str, str], str] = {}
        self._stated: dict[str, _Stated] = defaultdict(_Stated)
        self._unnamed = count()

    def add(self, fragment: Fragment, file: int, line: int) -> None:
        """Keep what a fragment says."""
        key = (fragment.trace, fragment.span or f"unnamed-{next(self._unnamed)}")
        said = fragment.attributes.get(CONVERSATION)
        if isinstance(said, str) and said:
            self._id_of_span[key] = f"{_NAMED}{said}"
        self._note(fragment, self._id_of_span.get(key, ""))
        if fragment.asked or fragment.answered or fragment.flaw:
            self._offsets.setdefault(key, array("Q")).append(self._spool.seek(0, 2))
            self._spool.write(_packed(fragment, file, line))

    def _note(self, fragment: Fragment, conversation: str) -> None:
        """Note a reward or an id for the conversation, or else for the whole trace."""
        stated, fields = self._stated[conversation or fragment.trace], self._fields
        reward = fields.reward and value_at(fragment.attributes, fields.reward)
        try:
            if reward not in (None, ""):
                stated.rewards.add(to_reward(reward, fields.reward))
            for place, ids in ((fields.task, stated.task_ids), (fields.outcome, stated.outcome_ids)):
                if place and (said := value_at(fragment.attributes, place)) not in (None, ""):
                    ids.add(to_task_id(said, place))
        except RecordError as error:
            stated.flaw = str(error)

    def episodes(self) -> Iterator[Trajectory | BadRecord]:
        """The episode of each conversation."""
        groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for key in self._offsets:
            groups[self._id_of_span.get(key, key[0])].append(key)
        for name, keys in groups.items():
            requests = sorted((self._request(key) for key in keys), key=lambda r: r.time_ns)
            traces = {trace for trace, _ in keys}
            try:
                yield self._episode(requests, [name, *sorted(traces - {name})])
            except RecordError as error:
                first = min(requests, key=lambda r: (r.file, r.line))
                yield BadRecord(self._paths[first.file], first.line, f"its conversation: {error}")
        if groups and not any(one.task_ids for one in self._stated.values()):
            require_a_task(self._fields, self._paths)

    def _request(self, key: tuple[str, str]) -> _Request:
        parts = []
        for offset in self._offsets[key]:
            self._spool.seek(offset)
            parts.append(json.loads(self._spool.readline()))
        parts.sort(key=lambda part: part["time_ns"])
        request = _Request(parts[0]["file"], parts[0]["line"], parts[0]["time_ns"], [], [])
        for part in parts:
            asked, answered = (_unpacked(part[name]) for name in ("asked", "answered"))
            # The same messages may be on the span and in an event of its details.
            request.asked += [] if asked == request.asked else asked
            request.answered += [] if answered == request.answered else answered
            request.flaw = request.flaw or part["flaw"]
            request.agent = request.agent or part["agent"]
        return request

    def _episode(self, requests: Sequence[_Request], names: Sequence[str]) -> Trajectory:
        for request in requests:
            if request.flaw:
                raise RecordError(f"line {request.line}: {request.flaw}")
        history = _whole(requests)
        stated = [self._stated[name] for name in names if name in self._stated]
        for one in stated:
            if one.flaw:
                raise RecordError(one.flaw)
        task_id = next((min(one.task_ids) for one in stated if one.task_ids), "")
        ids = [task_id, *(name.removeprefix(_NAMED) for name in names)]
        if self._fields.outcome:
            ids = sorted(set().union(*(one.outcome_ids for one in stated)))
        reward = self._reward(stated, *ids)
        return build_episode(history, reward=reward, task_id=task_id, source=requests[-1].agent)

    def _reward(self, stated: Sequence[_Stated], *ids: str) -> float:
        """The reward that its spans state, or that the outcomes list by the first of these ids."""
        for one in stated:
            if len(one.rewards) > 1:
                raise RecordError(
                    f"it has {len(one.rewards)} different values of {self._fields.reward!r}; "
                    "state one for each conversation"
                )
            if one.rewards:
                return min(one.rewards)
        for name in ids:
            if name in self._fields.outcomes:
                return self._fields.outcomes[name]
        if self._fields.default_reward is not None:
            return self._fields.default_reward
        listed = ", ".join(repr(name[:80]) for name in ids if name) or f"its spans, which lack {self._fields.outcome!r}"
        lacking = f"none of its spans has the attribute {self._fields.reward!r}" if self._fields.reward else ""
        unlisted = f"the outcomes list none of {listed}" if self._fields.outcomes else ""
        raise RecordError(", and ".join(filter(None, (lacking, unlisted))))


def _whole(requests: Sequence[_Request]) -> History:
    """The messages of a conversation, each as it was when the agent acted on it, and the last answer."""
    whole, answered, known, before = list[Message](), list[Message](), KnownState(), 0
    for request in requests:
        asked = request.asked
        if before and len(asked) < len(whole) and asked == whole[: len(asked)]:
            continue  # its time is wrong, or it was repeated
        begins = known.news(tuple(asked)) if before else 0
        if begins is None:
            raise RecordError(
                f"the request in line {request.line} does not continue the one in line {before}; each request needs "
                f"its whole history, and each agent a {CONVERSATION} of its own"
            )
        whole += asked[begins:]
        answered, before = request.answered, request.line
        known = KnownState.of(tuple(asked), PART_END.join(answer.text for answer in answered))
    return (*whole, *answered)


def _packed(fragment: Fragment, file: int, line: int) -> bytes:
    agent = fragment.attributes.get(AGENT)
    row = {
        "file": file,
        "line": line,
        "time_ns": fragment.time_ns,
        "asked": [one.model_dump() for one in rows_of(fragment.asked)],
        "answered": [one.model_dump() for one in rows_of(fragment.answered)],
        "flaw": fragment.flaw,
        "agent": agent if isinstance(agent, str) else "",
    }
    return json.dumps(row).encode() + b"\n"


def _unpacked(rows: Sequence[object]) -> list[Message]:
    return list(messages_of(MessageRow.model_validate(row) for row in rows))
