"""Metrics of a training: one JSON object per step in `metrics.jsonl`, and accelerate's trackers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from accelerate import Accelerator

METRICS: Final = "metrics.jsonl"


class TrainingMetrics:
    """Writer of a run's metrics; only the main process writes.

    Args:
        accelerator: its trackers get every figure as well.
        folder: the run folder.
        config: options of the run, for the trackers.
    """

    def __init__(
        self, accelerator: Accelerator, folder: Path, config: Mapping[str, object]
    ) -> None:
        self._accelerator = accelerator
        self._path = folder / METRICS
        if accelerator.log_with:
            plain = {k: v for k, v in config.items() if isinstance(v, int | float | str)}
            accelerator.init_trackers("qguide", config=plain)

    def start_after(self, step: int) -> None:
        """Keep only the rows of saved steps; later steps are trained and logged again."""
        if self._accelerator.is_main_process and self._path.is_file():
            rows = self._path.read_text().splitlines()[:step]
            unfinished = self._path.with_suffix(".partial")
            unfinished.write_text("".join(f"{row}\n" for row in rows))
            unfinished.replace(self._path)

    def log(self, row: Mapping[str, float]) -> None:
        """Write the figures of one step."""
        if self._accelerator.is_main_process:
            with self._path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        if self._accelerator.trackers:
            figures = {name: value for name, value in row.items() if name != "step"}
            self._accelerator.log(figures, step=int(row["step"]))

    def close(self) -> None:
        """Write out what trackers have buffered."""
        for tracker in self._accelerator.trackers:
            tracker.finish()
