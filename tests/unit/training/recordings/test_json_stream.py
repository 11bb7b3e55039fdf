"""JSON values are streamed with their lines; what is malformed is named, never raised."""

from pathlib import Path

import pytest

from qguide.training.recordings import json_stream
from qguide.training.recordings.json_stream import Value, read_values


def values(folder: Path, text: str | bytes) -> list[Value]:
    """The values of a file with this text."""
    path = folder / "rows.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return list(read_values(path))


def test_lines_are_values(tmp_path: Path) -> None:
    found = values(tmp_path, '{"a": 1}\n\n{"a": 2}')
    assert found == [Value(1, {"a": 1}), Value(3, {"a": 2})]


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    assert values(tmp_path, b'\xef\xbb\xbf{"a": 1}\n') == [Value(1, {"a": 1})]


def test_elements_of_a_list_have_their_lines(tmp_path: Path) -> None:
    text = '[\n  {"a": 1},\n  {"a":\n 2}\n, {"a": 3}]\n'
    assert [(v.line, v.value) for v in values(tmp_path, text)] == [(2, {"a": 1}), (3, {"a": 2}), (5, {"a": 3})]


@pytest.mark.parametrize("text", ["[]", " [ ] \n"])
def test_an_empty_list_has_no_values(tmp_path: Path, text: str) -> None:
    assert values(tmp_path, text) == []


def test_elements_that_exceed_a_chunk_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "CHUNK", 7)
    assert [v.value for v in values(tmp_path, '[{"text": "' + "é" * 50 + '"}, [1, 2]]')] == [{"text": "é" * 50}, [1, 2]]


def test_a_document_over_several_lines_is_one_value(tmp_path: Path) -> None:
    assert values(tmp_path, '{\n "a": 1\n}\n') == [Value(1, {"a": 1})]


def test_after_a_broken_line_the_others_are_read(tmp_path: Path) -> None:
    broken, fine = values(tmp_path, '{"a": SECRET}\n{"a": 2}\n')
    assert broken.line == 1
    assert "not JSON" in broken.flaw
    assert "SECRET" not in broken.flaw
    assert fine == Value(2, {"a": 2})


def test_a_broken_list_is_read_up_to_its_flaw(tmp_path: Path) -> None:
    fine, broken = values(tmp_path, '[{"a": 1},\n {"a": ]')
    assert fine.value == {"a": 1}
    assert broken.line == 2
    assert "not JSON" in broken.flaw


@pytest.mark.parametrize(
    ("text", "read", "line", "flaw"),
    [
        ('[\n{"a": 1},\n', 1, 3, "no closing bracket"),
        ('[\n{"a": 1}\n', 1, 3, "no closing bracket"),
        ("[\n", 0, 2, "no closing bracket"),
        ('[{"a": 1}\n{"a": 2}]', 1, 2, "no comma"),
        ('[{"a": 1},]', 1, 1, "not JSON"),
        ('[,{"a": 1}]', 0, 1, "not JSON"),
        ('[{"a": 1}]\n]', 1, 2, "goes on"),
        ('[{"a": 1}]\n{"a": 2}', 1, 2, "goes on"),
    ],
)
def test_a_list_that_is_not_whole_is_named_by_line(tmp_path: Path, text: str, read: int, line: int, flaw: str) -> None:
    *fine, broken = values(tmp_path, text)
    assert [value.flaw for value in fine] == [""] * read
    assert broken.line == line
    assert flaw in broken.flaw


@pytest.mark.parametrize("chunk", range(1, 9))
def test_numbers_that_exceed_a_chunk_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(json_stream, "CHUNK", chunk)
    found = values(tmp_path, "[123456, 1.25, 5e-3, -7]\n")
    assert found == [Value(1, number) for number in (123456, 1.25, 5e-3, -7)]


@pytest.mark.parametrize(
    ("line", "flaw"),
    [
        (b'{"a": NaN}', "NaN"),
        (b'{"a": "\\ud800"}', "not UTF-8"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "100 levels"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "cannot be read|not JSON"),
    ],
)
def test_hostile_values_are_named(tmp_path: Path, line: bytes, flaw: str) -> None:
    (first, *_) = values(tmp_path, line + b"\n")
    assert any(part in first.flaw for part in flaw.split("|"))


def test_a_value_that_is_too_long_is_named_and_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "MOST_BYTES", 20)
    long, fine = values(tmp_path, '{"a": "' + "x" * 50 + '"}\n{"a": 2}\n')
    assert long.flaw == "it has more than 20 bytes"
    assert fine == Value(2, {"a": 2})


def test_all_bytes_are_reported(tmp_path: Path) -> None:
    for text in ('{"a": 1}\n{"a": 2}\n', '[{"a": 1}]  \n', '{\n"a": 1}'):
        path = tmp_path / "rows.json"
        path.write_text(text)
        counted: list[int] = []
        list(read_values(path, on_bytes=counted.append))
        assert sum(counted) == len(text)
