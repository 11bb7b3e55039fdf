"""A recording is read piece by piece, whatever its layout: what is held is counted."""

import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from qguide.qnet.errors import RecordError
from qguide.training.recordings import json_stream
from qguide.training.recordings.fields import Fields
from qguide.training.recordings.formats.read import read_episodes, recording_of
from qguide.training.recordings.json_stream import read_values

COUNT = 300
ROWS = [
    {
        "messages": [{"role": "user", "content": f"Task {number}"}, {"role": "assistant", "content": "x" * 500}],
        "reward": 0.5,
    }
    for number in range(COUNT)
]
WIDTH = len(json.dumps(ROWS[-1])) + 2


def as_lines() -> str:
    return "".join(json.dumps(row) + "\n" for row in ROWS)


def as_list() -> str:
    return json.dumps(ROWS)


def as_object() -> str:
    return json.dumps({"info": {"name": "a run"}, "rows": ROWS, "more": [1, 2]})


@pytest.mark.parametrize(("written", "within"), [(as_lines, ""), (as_list, ""), (as_object, "rows")])
def test_no_more_than_two_pieces_lie_between_the_file_and_the_reader(
    written: Callable[[], str], within: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_stream, "CHUNK", 2 * WIDTH)
    path = tmp_path / "rows.json"
    path.write_text(written())
    read = 0

    def on_bytes(count: int) -> None:
        nonlocal read
        read += count

    ahead = []
    for number, value in enumerate(read_values(path, within=within, on_bytes=on_bytes)):
        assert value.value == ROWS[number]
        ahead.append(read - number * WIDTH)
    assert len(ahead) == COUNT
    assert max(ahead) < 5 * WIDTH
    assert read == path.stat().st_size


def test_the_first_episode_is_there_before_the_second_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(as_lines())
    read: list[int] = []
    episodes = read_episodes(recording_of(path), Fields(), on_bytes=read.append)
    next(episodes)
    assert len(read) <= 2
    assert len(list(episodes)) == COUNT - 1


@pytest.mark.parametrize(("end", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_a_compressed_file_is_read_as_what_it_holds(end: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / f"rows.jsonl{end}"
    path.write_bytes(pack(as_lines().encode()))
    read: list[int] = []
    assert [value.value for value in read_values(path, on_bytes=read.append)] == ROWS
    assert sum(read) == path.stat().st_size
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RecordError, match=r"rows\.jsonl\.\w+ .*damaged"):
        list(read_values(path))


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="the file whose beginning cannot be read is Linux's")
def test_a_disk_that_fails_is_not_called_damaged_compression(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.symlink_to("/proc/self/mem")
    with pytest.raises(RecordError, match=r"rows\.jsonl\.gz .*: Input/output"):
        list(read_values(path))


@pytest.mark.parametrize("end", [".gz", ".bz2", ".xz"])
def test_what_is_not_compressed_as_its_name_says_is_refused(end: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.jsonl{end}"
    path.write_text(as_lines())
    with pytest.raises(RecordError, match=r"rows\.jsonl\.\w+ .*damaged"):
        list(read_values(path))


def test_values_of_an_object_have_its_kept_fields_around_them(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"info": {"name": "a"},\n"rows": [1,\n2], "late": 3}')
    found = list(read_values(path, within="rows", keeping=("info", "late")))
    assert [(one.value, one.line) for one in found] == [(1, 2), (2, 3)]
    assert found[0].around == {"info": {"name": "a"}}
    path.write_text('{"t1": {"a": 1}, "t2": {"a": 2}}')
    by_key = [(one.around["@key"], one.value) for one in read_values(path, within="*")]
    assert by_key == [("t1", {"a": 1}), ("t2", {"a": 2})]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"rows": [1, 2', "the list has no closing bracket"),
        ('{"rows": [1] "more": 2}', "the object has no comma"),
        ('{"rows": 7}', "a list was expected"),
        ('{"rows": [1]} 8', "the object goes on after its end"),
        ("{7: 8}", "without a key"),
        ('{"rows"', "without a key"),
    ],
)
def test_an_object_that_is_cut_off_is_named(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    flaws = [value.flaw for value in read_values(path, within="rows") if value.flaw]
    assert len(flaws) == 1
    assert reason in flaws[0]
