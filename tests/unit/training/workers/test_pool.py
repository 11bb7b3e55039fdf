"""A pool tells its workers of the episodes that nobody plays any more."""

import pytest

from qguide.training.processes.messages import Reply, Request, WorkerLostError
from qguide.training.workers.pool import WorkerPool


class Noting:
    """A worker that notes which episodes it was told to close."""

    def __init__(self) -> None:
        self.dead = False
        self.closed: list[int] = []

    def ask(self, request: Request) -> Reply:
        """Note, unless it is dead."""
        if self.dead:
            raise WorkerLostError("dead")
        self.closed += request.closed
        return Reply()

    def close(self) -> None:
        """Nothing to end."""


class Starting:
    """An executor that keeps the workers it started."""

    def __init__(self) -> None:
        self.started: list[Noting] = []

    def start(self) -> Noting:
        """One more."""
        self.started.append(Noting())
        return self.started[-1]

    def close(self) -> None:
        """Nothing is shared."""


def test_a_request_to_a_lost_worker_closes_no_episode_of_the_next_one() -> None:
    executor = Starting()
    pool = WorkerPool(executor, 1)
    first, late = pool.seat(), pool.seat()
    executor.started[0].dead = True
    with pytest.raises(WorkerLostError):
        first.ask("step")
    again = pool.seat()
    again.ask("reset")
    again.leave()
    with pytest.raises(WorkerLostError):
        late.ask("step")
    pool.seat().ask("reset")
    assert executor.started[1].closed == [2]
