"""Import is the inverse of export; malformed lines are named by their number and never crash."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from qguide.qnet.types import Message, ToolCall
from qguide.training.data.runs import JsonlWriter
from qguide.training.data.trajectories import Trajectory
from qguide.training.exports.trl import conversation_row
from qguide.training.recordings.episode import BadRecord, build_episode
from qguide.training.recordings.fields import Fields
from qguide.training.recordings.formats.read import FORMATS, Recording, read_episodes

FEW = settings(max_examples=60, deadline=None)
TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(str.strip)
REWARD = st.floats(-1e6, 1e6, allow_nan=False)
BY_LINE = tuple(name for name, layout in FORMATS.items() if not (layout.values or layout.within))
EVERY = tuple(name for name, layout in FORMATS.items() if not layout.values)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)
KNOWN = st.sampled_from(
    [
        "messages",
        "conversations",
        "role",
        "content",
        "from",
        "value",
        "loss",
        "reward",
        "nodes",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "resourceSpans",
        "scopeSpans",
        "spans",
        "attributes",
        "key",
        "traceId",
        "spanId",
        "events",
        "resourceLogs",
        "task_id",
        "weight",
    ]
)
LIKELY = st.recursive(
    st.none() | st.booleans() | st.floats() | st.sampled_from(["user", "assistant", "gpt", "tool"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KNOWN, inner, max_size=5),
    max_leaves=30,
)
"""JSON of the fields that the readers look at, at places where they do not expect them."""


@st.composite
def conversations(draw: st.DrawFn) -> Trajectory:
    """An episode with and without tools, of any texts."""
    messages = [Message("system", draw(TEXT))] if draw(st.booleans()) else []
    messages.append(Message("user", draw(TEXT)))
    ignored = set()
    for number in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            ignored.add(len(messages))
        names = draw(st.lists(TEXT, max_size=2))
        calls = tuple(ToolCall(name, json.dumps(draw(JSON_OBJECT)), f"{number}-{i}") for i, name in enumerate(names))
        messages.append(Message("assistant", "" if calls else draw(TEXT), calls))
        if calls:
            messages += [Message("tool", draw(TEXT), tool_call_id=call.id) for call in calls]
        else:
            messages.append(Message("user", draw(TEXT)))
    return build_episode(
        messages,
        reward=draw(REWARD),
        task_id=draw(TEXT),
        terminated=draw(st.booleans()),
        source=draw(TEXT),
        ignored=ignored,
    )


JSON_OBJECT = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=5),
    st.integers() | st.text(st.characters(codec="utf-8"), max_size=5),
    max_size=2,
)


def read(path: Path, format_: str) -> list[Trajectory | BadRecord]:
    """Everything that a file holds."""
    recording = Recording(format_, FORMATS[format_], (path,))
    return list(read_episodes(recording, Fields(default_reward=0.0)))


@FEW
@given(st.lists(conversations(), min_size=1, max_size=3))
def test_import_reads_what_export_wrote(episodes: list[Trajectory]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sft.jsonl"
        with JsonlWriter(path) as writer:
            for episode in episodes:
                writer.write(conversation_row(episode))
        assert read(path, "messages") == episodes


@FEW
@given(st.lists(JSON | LIKELY, min_size=1, max_size=4), st.sampled_from(BY_LINE))
def test_any_json_is_an_episode_or_named_by_its_line(rows: list[Any], format_: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        # A first line that cannot be mistaken for the start of a list over several lines.
        lines = ["{}", *(json.dumps(row) for row in rows)]
        path.write_text("\n".join(lines))
        for found in read(path, format_):
            if isinstance(found, BadRecord):
                assert 1 <= found.line <= len(lines)
                assert found.reason


@FEW
@given(st.lists(st.binary(max_size=30), max_size=5), st.sampled_from(EVERY))
def test_any_bytes_are_named_by_their_line(lines: list[bytes], format_: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_bytes(b"\n".join(lines))
        number = path.read_bytes().count(b"\n") + 1
        for found in read(path, format_):
            assert isinstance(found, BadRecord)
            assert 1 <= found.line <= number


@FEW
@given(LIKELY, st.sampled_from(BY_LINE))
def test_elements_of_a_list_are_named_like_lines(row: Any, format_: str) -> None:
    fine: Mapping[str, Any] = {"any": "thing"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        path.write_text(f"[\n{json.dumps(fine)},\n{json.dumps(row)}]")
        bad = [found for found in read(path, format_) if isinstance(found, BadRecord)]
        assert bad[0].line == 2
        assert all(found.line in (2, 3) for found in bad)
