"""Rows of run folders, files, shards and addresses, as JSON lines and as parquet."""

import json
import tracemalloc
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from benchmarks.rows.rows import RowsBench, tree_lines
from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.records import TreeRow
from qguide.training.data import row_files as row_files_module
from qguide.training.data.parquet import write_parquet
from qguide.training.data.row_files import RowStore, new_file, row_files
from qguide.training.data.runs import open_run, read_rows
from qguide.training.data.task_trees import TaskTrees
from qguide.training.jobs.export_data import ExportConfig, run_export_data
from qguide.training.jobs.label import LabelConfig, run_label
from qguide.training.jobs.pairs import PairsConfig, run_pairs
from qguide.training.q_training.options import TrainQNetConfig

ADDRESS = Path("memory://bucket")


@pytest.fixture(autouse=True)
def _empty_store() -> Iterator[None]:
    yield
    fsspec.filesystem("memory").store.clear()


def corpus(path: Path, rows: int, *, steps: int = 3) -> Path:
    """A run folder of as many trees, four of each task."""
    path.mkdir(parents=True)
    config = RowsBench(output=Path("unused.json"), steps=steps)
    (path / "rows.jsonl").write_text("".join(tree_lines(config, rows)))
    return path


def shards(path: Path, rows: list[TreeRow]) -> Path:
    """A folder with these rows in two files, of which one is parquet."""
    half = len(rows) // 2
    with new_file(path / "rows-0.jsonl") as file:
        file.writelines(row.model_dump_json().encode() + b"\n" for row in rows[:half])
    with new_file(path / "trees.parquet") as file:
        assert write_parquet(file, TreeRow, rows[half:]) == len(rows) - half
    return path


@pytest.mark.parametrize("place", ["here", "there"])
def test_rows_of_shards_are_those_of_one_file(tmp_path: Path, place: str) -> None:
    rows = list(read_rows(corpus(tmp_path / "whole", 10), TreeRow))
    *before, last = rows[-1].nodes
    nodes = (*before, last.model_copy(update={"terminated": None}))
    rows[-1] = rows[-1].model_copy(update={"values": {"mcts": (0.5, None, 1.0)}, "nodes": nodes})
    folder = shards(tmp_path / "shards" if place == "here" else ADDRESS, rows)
    assert list(read_rows(folder, TreeRow)) == rows
    store = RowStore(TreeRow)
    places = [found for found, _ in store.add(folder)]
    assert [store.read(found) for found in reversed(places)] == rows[::-1]


def test_jobs_read_an_address_as_they_read_a_folder(tmp_path: Path) -> None:
    trees = corpus(tmp_path / "trees", 40)
    there = shards(ADDRESS, list(read_rows(trees, TreeRow)))
    for source, name in ((trees, "here"), (there, "there")):
        run_label(LabelConfig(trees=(source,), output=tmp_path / f"labels-{name}"))
        run_pairs(PairsConfig(trees=(source,), output=tmp_path / f"pairs-{name}", trajectory_pairs=True))
    for job in ("labels", "pairs"):
        here, there = (tmp_path / f"{job}-{name}" / "rows.jsonl" for name in ("here", "there"))
        assert here.read_bytes() == there.read_bytes()


def test_rows_are_exported_to_an_address_and_read_back(tmp_path: Path) -> None:
    trees = corpus(tmp_path / "trees", 10)
    output = ADDRESS / "trees.parquet"
    config = ExportConfig(source=trees, output=output, format="parquet")
    assert run_export_data(config)["rows"] == 10
    assert list(read_rows(output, TreeRow)) == list(read_rows(trees, TreeRow))
    assert row_files(ADDRESS) == [output]
    with pytest.raises(ConfigError, match=r"bucket/trees\.parquet exists;"):
        run_export_data(config)


def fail_while_writing(path: Path) -> None:
    with new_file(path) as file:
        file.write(b"half of a row")
        raise ZeroDivisionError


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    for output in (ADDRESS / "rows.jsonl", tmp_path / "rows.jsonl"):
        with pytest.raises(ZeroDivisionError):
            fail_while_writing(output)
        with pytest.raises(RecordError, match=r"rows\.jsonl .*exist; "):
            list(read_rows(output, TreeRow))


def test_a_job_file_may_name_an_address() -> None:
    config = TrainQNetConfig.model_validate({"labels": ["memory://bucket"], "trunk": "t", "output": "o"})
    assert config.labels == (ADDRESS,)


def test_a_source_that_cannot_be_read_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere://bucket .*nowhere; .*fsspec"):
        list(read_rows(Path("nowhere://bucket"), TreeRow))
    broken = tmp_path / "rows.parquet"
    broken.write_text("no parquet")
    with pytest.raises(RecordError, match=r"rows\.parquet .*\(Parquet "):
        list(read_rows(broken, TreeRow))
    other = tmp_path / "other.jsonl"
    other.write_text('{"one": 1}\n')
    with pytest.raises(RecordError, match=r"other\.jsonl, line 1: task_id: "):
        list(read_rows(other, TreeRow))


def peak_of_reading(folder: Path) -> int:
    """The most bytes of Python objects while all tasks are read."""
    tracemalloc.start()
    try:
        tasks = TaskTrees([folder], min_reward=-1, max_reward=1)
        assert sum(1 for _ in tasks) == len(tasks)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    few, many = (corpus(tmp_path / str(rows), rows) for rows in (100, 1600))
    peak_of_reading(many)  # imports; pydantic keeps the first 16,384 short texts
    fewest, most = peak_of_reading(few), peak_of_reading(many)
    assert most < fewest + 32 * 1024
    assert most < (many / "rows.jsonl").stat().st_size / 10


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    trees = corpus(tmp_path / "trees", 4)
    store = RowStore(TreeRow)
    [first, *_] = [place for place, _ in store.add(trees)]
    (trees / "rows.jsonl").write_text(json.dumps({}) + "\n")
    with pytest.raises(RecordError, match=r"rows\.jsonl .*changed"):
        store.read(first)


def test_shards_beyond_those_that_may_be_open_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files_module, "_MOST_OPEN", 1)
    rows = list(read_rows(corpus(tmp_path / "whole", 12), TreeRow))
    for number in range(4):
        with new_file(tmp_path / "shards" / f"rows-{number}.jsonl") as file:
            part = rows[3 * number : 3 * number + 3]
            file.write(b"\n".join(row.model_dump_json().encode() for row in part))
    store = RowStore(TreeRow)
    places = [found for found, _ in store.add(tmp_path / "shards")]
    assert len({id(file) for file in store._files}) == 2
    for number in range(4):
        (tmp_path / "shards" / f"rows-{number}.jsonl").unlink()
    assert [store.read(found) for found in reversed(places)] == rows[::-1]


def test_a_files_address_is_that_file(tmp_path: Path) -> None:
    trees = corpus(tmp_path / "trees", 3)
    there = Path(f"file://{trees}")
    assert list(read_rows(there, TreeRow)) == list(read_rows(trees, TreeRow))


class LockedStore(MemoryFileSystem):  # type: ignore[misc]
    """A store whose package has an error of its own for a caller without credentials."""

    protocol = "locked"

    def exists(self, path: str, **options: object) -> bool:
        class NoCredentialsError(Exception):
            pass

        raise NoCredentialsError("Unable to locate credentials")


def test_a_store_that_is_locked_is_an_error_with_its_address(tmp_path: Path) -> None:
    fsspec.register_implementation("locked", LockedStore, clobber=True)
    address = Path("locked://bucket/rows.jsonl")
    said = r"locked://bucket/rows\.jsonl cannot be reached: Unable to locate credentials"
    with pytest.raises(ConfigError, match=said):
        list(read_rows(address, TreeRow))
    trees = corpus(tmp_path / "trees", 1)
    with pytest.raises(ConfigError, match=said):
        run_export_data(ExportConfig(source=trees, output=address, format="parquet"))


@pytest.mark.parametrize(
    "columns",
    [
        {"task_id": [date(2026, 1, 1)]},
        {"task_id": ["t"], "nodes": [["a node"]]},
        {"task_id": ["t"], "nodes": [3]},
        {"task_id": ["t"], "values": [{"mcts": [1.0]}]},
    ],
)
def test_columns_of_another_shape_are_refused(tmp_path: Path, columns: dict[str, list[object]]) -> None:
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(RecordError, match=r"rows\.parquet: .*TreeRow \(.*`qguide export-data --format parquet`"):
        list(read_rows(path, TreeRow))


def test_a_job_writes_no_folder_at_an_address() -> None:
    config = LabelConfig(trees=(ADDRESS,), output=ADDRESS / "labels")
    with (
        pytest.raises(ConfigError, match=r"output .*memory://bucket/labels, .*`qguide export-data`"),
        open_run(config.output, config),
    ):
        pass
    assert not Path("memory:").exists()
