"""Import recorded episodes of any agent as records of the jobs.

    qguide import SOURCE --output runs/imported

or with --config FILE, like every job. It reads episodes that the server recorded, messages in the
dialects of OpenAI and Anthropic, and the formats of `training/recordings/formats`, and writes

    <output>/trajectories/rows.jsonl   every episode, for `sft` and `pairs`
    <output>/trees/rows.jsonl          the tree of each task, for `label` and `pairs`
    <output>/report.json               figures, and what to collect to have more

Episodes are streamed: at any time the memory holds one of them, one task's tree, and the reward of
each; where each begins is noted in a temporary file. The rows appear all at once when everything is
read; a killed run starts over.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from pydantic import Field
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.records import TreeRow
from qguide.training.data.row_files import size_of
from qguide.training.data.runs import JsonlWriter, RunFolder, open_run
from qguide.training.data.trajectories import Trajectory
from qguide.training.recordings.episode import BadRecord
from qguide.training.recordings.formats.read import IMPORTED, ReadingModels, made_of_episodes, recording_of
from qguide.training.recordings.json_stream import OnBytes
from qguide.training.recordings.report import ImportReport, ImportTally
from qguide.training.recordings.task_tree import build_task_trees
from qguide.training.workers.config import RowWorkers, Workers
from qguide.training.workers.ray_actors import connected, spread

TREES = "trees"
REPORT = "report.json"
MAY_CHANGE = frozenset({"output", "workers"})


class WrittenEpisode(NamedTuple):
    """An episode as its row is written."""

    task_id: str
    line: bytes
    reward: float
    counts: Mapping[str, int]
    left_out: Mapping[str, int]


class StoredEpisodes(NamedTuple):
    """The rows of one task's episodes as they are written, to be merged here or on another machine."""

    lines: list[bytes]

    @property
    def nbytes(self) -> int:
        """Length of all lines."""
        return sum(map(len, self.lines))


class ImportConfig(ReadingModels):
    """Configuration of `qguide import`, with the options of reading.

    Attributes:
        source: a file, or a folder with files below it, here or at an address such as s3://bucket/logs; .gz, .bz2
            and .xz are read as they are.
        output: the folder to write.
        environment: name of the environment, for recordings that do not name it.
        workers: where records become rows and rows become trees: with the executor "ray", `count` tasks of Ray
            work at a time, and the rows are the same. Records that are read with others or with files beside
            them, such as spans, become rows in the job's own process.
    """

    source: Path
    output: Path
    environment: str = Field(default="imported", min_length=1)
    workers: RowWorkers = Workers()


def run_import(config: ImportConfig, *, console: Console | None = None) -> ImportReport:
    """Write the records and the report."""
    recording = recording_of(config.source, config.format, messages=config.messages_key)
    config = config.model_copy(update={"format": recording.format})
    paths, fields = recording.paths, config.fields
    with open_run(config.output, config, may_change=MAY_CHANGE) as run:
        trajectories, trees = (run.path / name / "rows.partial" for name in (IMPORTED, TREES))
        # SQLite keeps in a temporary file what is too much for memory, and sorts there.
        index = closing(sqlite3.connect(""))
        with _removed_on_failure(run, trajectories, trees), connected(config.workers), index as places:
            tally = ImportTally(files=len(paths))
            make, on_workers = partial(_written, config.environment), partial(spread, workers=config.workers)
            with _progress(paths, console) as on_bytes:
                found = made_of_episodes(recording, fields, make, on_workers, on_bytes=on_bytes)
                _write_trajectories(found, trajectories, tally, places)
            _require_episodes(config, tally)
            with JsonlWriter(trees, flushes=False) as writer:
                for lines, figures in on_workers(_merged, _of_tasks(trajectories, places)):
                    writer.write_lines(lines)
                    tally.add_task(figures)
            report = tally.report()
        for path in (trajectories, trees):
            path.replace(RunFolder(path.parent).rows)
        (run.path / REPORT).write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
        with JsonlWriter(run.metrics) as metrics:
            metrics.write(report.model_dump(exclude={"advice", "bad_records", "left_out"}))
        return report


@contextmanager
def _removed_on_failure(run: RunFolder, *unfinished: Path) -> Iterator[None]:
    """Remove files that a killed run left; after an error, also those of this run.

    The configuration goes too, unless there are rows of an earlier import, so that a source that
    was refused can be imported with other options. That holds for any error, a full disk included.
    """
    for path in unfinished:
        path.unlink(missing_ok=True)
    try:
        yield
    except Exception:
        for path in unfinished:
            path.unlink(missing_ok=True)
        if not RunFolder(run.path / TREES).rows.exists():
            run.config.unlink()
        raise


def _written(environment: str, found: Trajectory | BadRecord) -> WrittenEpisode | BadRecord:
    if isinstance(found, BadRecord):
        return found
    row = found.to_row(environment=environment)
    tool_calls = sum(len(message.tool_calls) for message in found.messages)
    counts = {"actions": len(found.replies), "tool_calls": tool_calls}
    line = f"{row.model_dump_json()}\n".encode()
    return WrittenEpisode(row.task_id, line, found.reward, counts, found.left_out)


def _write_trajectories(
    episodes: Iterable[WrittenEpisode | BadRecord], output: Path, tally: ImportTally, places: sqlite3.Connection
) -> None:
    places.execute("CREATE TABLE rows (task, start)")
    end = 0
    with JsonlWriter(output, flushes=False) as writer:
        for found in episodes:
            if isinstance(found, BadRecord):
                tally.add_bad(found)
                continue
            places.execute("INSERT INTO rows VALUES (?, ?)", (found.task_id, end))
            end += writer.write_lines(found.line)
            tally.rewards.append(found.reward)
            tally.counts.update(found.counts)
            tally.left_out.update(found.left_out)


def _require_episodes(config: ImportConfig, tally: ImportTally) -> None:
    """Refuse a source with bad records, unless they may be skipped, and one without episodes."""
    listed = "\n  ".join(tally.bad)
    more = tally.skipped - len(tally.bad)
    listed += f"\n  and {more:,} more" if more else ""
    if tally.skipped and not config.skip_bad:
        total = tally.skipped + len(tally.rewards)
        raise RecordError(
            f"{tally.skipped:,} of {total:,} records hold no episode; correct them, or leave them "
            f"out with --skip-bad:\n  {listed}"
        )
    if not tally.rewards:
        raise ConfigError(
            f"{config.source} holds no episode; name another source or another --format"
            + (f":\n  {listed}" if tally.bad else "")
        )


def _of_tasks(trajectories: Path, places: sqlite3.Connection) -> Iterator[StoredEpisodes]:
    ordered = places.execute(
        "SELECT MIN(start) OVER (PARTITION BY task) AS first, start FROM rows ORDER BY first, start"
    )
    with trajectories.open("rb") as file:
        for _, of_task in groupby(ordered, key=itemgetter(0)):
            lines = []
            for _, start in of_task:
                file.seek(start)
                lines.append(file.readline())
            yield StoredEpisodes(lines)


def _merged(episodes: StoredEpisodes) -> tuple[bytes, list[Counter[str]]]:
    trees = build_task_trees([TreeRow.model_validate_json(line) for line in episodes.lines])
    lines = "".join(f"{row.model_dump_json()}\n" for row, _ in trees)
    return lines.encode(), [figures for _, figures in trees]


@contextmanager
def _progress(paths: Sequence[Path], console: Console | None) -> Iterator[OnBytes]:
    columns = (TextColumn("import"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console or Console(stderr=True), transient=True) as progress:
        task = progress.add_task("import", total=sum(map(size_of, paths)))
        yield lambda count: progress.advance(task, count)
