"""Progress bar for jobs."""

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class ProgressBar:
    """A bar with a job's name, count, times and a note, on stderr by default."""

    def __init__(self, name: str, *, total: int, done: int = 0, console: Console | None = None) -> None:
        """Prepare a bar at `done` of `total`; entering the context shows it."""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console or Console(stderr=True),
        )
        self._task = self._progress.add_task(name, total=total, completed=done, note="")

    def advance(self, note: str = "") -> None:
        """Count one more as done."""
        self._progress.update(self._task, advance=1, note=note)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()  # the last state stays on the screen
