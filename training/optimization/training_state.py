"""Saved state of a training, from which it resumes exactly.

    state-000120/     model, optimizers and random generators (accelerate), weight average, step

A state is complete as soon as its folder has this name: it is written beside it and renamed. Older
states are removed afterwards, so a kill at any moment leaves at least the last complete one. Files
are safetensors, or loaded as weights only.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from safetensors.torch import load_file, save_file

from qguide.qnet.errors import ConfigError
from qguide.training.optimization.weight_average import WeightAverage

PREFIX: Final = "state-"
_PARTIAL: Final = ".partial"
_AVERAGE: Final = "weight_average.safetensors"
_PROGRESS: Final = "progress.json"


class TrainingState:
    """The saved states in a run folder."""

    def __init__(self, accelerator: Accelerator, average: WeightAverage, folder: Path) -> None:
        self._accelerator = accelerator
        self._average = average
        self._folder = folder

    def save(self, step: int) -> None:
        """Save the state after `step` steps; all processes have to call this."""
        final = self._folder / f"{PREFIX}{step:06d}"
        if final.is_dir():  # a finished run that was started again
            return
        partial = final.with_name(final.name + _PARTIAL)
        self._accelerator.save_state(str(partial))
        mean = self._average.full_mean()
        if self._accelerator.is_main_process:
            if mean:
                save_file(mean, partial / _AVERAGE)
            progress = {
                "step": step,
                "averaged_steps": self._average.count,
                "num_processes": self._accelerator.num_processes,
            }
            (partial / _PROGRESS).write_text(json.dumps(progress))
        self._accelerator.wait_for_everyone()
        if self._accelerator.is_main_process:
            partial.rename(final)
            self._remove_others(final)
        # The next call looks for the folder, and all processes have to find it or none.
        self._accelerator.wait_for_everyone()
        if not (final / _PROGRESS).is_file():
            raise ConfigError(
                f"rank {self._accelerator.process_index} does not find {final}, which the main "
                "process has saved; name an output folder that all machines share"
            )

    def load(self) -> int:
        """Load the newest state into the model, the optimizers and the average; return its step.

        All processes have to call this. Without a saved state it changes nothing and returns 0.
        """
        newest = [max(self._folder.glob(f"{PREFIX}[0-9]*[0-9]"), default=None)]
        broadcast_object_list(newest)
        if newest[0] is None:
            return 0
        progress = json.loads((newest[0] / _PROGRESS).read_text())
        self._require_processes(newest[0], progress)
        self._accelerator.load_state(str(newest[0]))
        if progress["averaged_steps"]:
            self._average.load(load_file(newest[0] / _AVERAGE), progress["averaged_steps"])
        return int(progress["step"])

    def _require_processes(self, saved: Path, progress: Mapping[str, int]) -> None:
        """Refuse another number of processes, some of which would lack random generators."""
        now = self._accelerator.num_processes
        before = progress.get("num_processes", now)  # which version 0.1.0 did not save
        if before != now:
            raise ConfigError(
                f"{saved} was saved by {before} processes, but this training has {now}; resume "
                f"with {before} (optimization.processes, or --num_processes of the launcher), or "
                "start anew in another output folder"
            )

    def _remove_others(self, newest: Path) -> None:
        for folder in self._folder.glob(f"{PREFIX}*"):
            if folder != newest:
                shutil.rmtree(folder)
