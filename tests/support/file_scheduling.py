"""Scheduling of pytest-xdist's `--dist loadfile` that survives a dead worker."""

from typing import Any

from xdist.scheduler import LoadFileScheduling


class FileScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Files of tests for workers; when a worker died, others run what it had not begun.

    pytest-xdist 3.8 puts all files of a dead worker back into the queue. Those whose tests had all
    ended are then given away as empty work, for which a worker waits for ever, and the test during
    which the worker died kills the next worker, and the one after that. And a worker begins a test
    only when it knows its next one, but the successor of a dead worker may be given a single test.
    """

    def schedule(self) -> None:
        """Give work to the workers that are there."""
        super().schedule()
        for node in self.nodes:
            self._reschedule(node)

    def remove_node(self, node: Any) -> str | None:
        """Remove a worker, and name the test during which it died."""
        files: dict[str, dict[str, bool]] = self.assigned_work[node]
        begun = next((t for tests in files.values() for t, ended in tests.items() if not ended), None)
        if begun is not None:
            files[self._split_scope(begun)][begun] = True
        for file in [file for file, tests in files.items() if all(tests.values())]:
            del files[file]
        super().remove_node(node)
        return begun
