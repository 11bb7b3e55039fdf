"""A stage's fingerprint changes with what its result depends on, and only with that."""

from pathlib import Path

import pytest

from qguide.pipelines.summary import Fingerprint, InputHashes, changes


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with rows."""
    for name, text in (("rows.jsonl", '{"task_id": "a"}\n'), ("metrics.jsonl", "{}\n"), ("run.lock", "")):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_only_the_rows_of_a_run_folder_count(run: Path) -> None:
    before = InputHashes().of(run)
    (run / "metrics.jsonl").write_text('{"summary": 1}\n')
    assert InputHashes().of(run) == before
    (run / "rows.jsonl").write_text('{"task_id": "b"}\n')
    assert InputHashes().of(run) != before


def test_every_file_of_a_model_counts_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    first = InputHashes().of(tmp_path)
    (tmp_path / "config.json").rename(tmp_path / "manifest.json")
    second = InputHashes().of(tmp_path)
    (tmp_path / "manifest.json").write_text('{"a": 1}')
    assert len({first, second, InputHashes().of(tmp_path)}) == 3


def test_all_that_a_source_with_a_star_names_counts(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_text(name)
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    first = InputHashes().of(tmp_path / "*")
    (tmp_path / "two/rows.jsonl").write_text("three")
    assert len({"", first, InputHashes().of(tmp_path / "*")}) == 3
    assert InputHashes().of(tmp_path / "broken") == InputHashes().of(tmp_path / "th*") == ""


def test_what_is_not_there_has_an_empty_hash(tmp_path: Path) -> None:
    assert InputHashes().of(tmp_path / "Qwen/Qwen3-0.6B") == ""


def test_differences_are_named() -> None:
    before = Fingerprint(config={"a": 1, "parallel": 4, "b": {"c": 2}}, inputs={"runs/x": "1", "runs/z": "3"})
    now = Fingerprint(config={"a": 1, "parallel": 8, "b": {"c": 3}}, inputs={"runs/x": "2", "runs/y": "3"})
    assert changes(before, now) == ["b.c was 2 and is 3", "runs/x has changed"]
    assert changes(before, before) == []
