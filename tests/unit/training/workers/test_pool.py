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


def test_a_request_to_a_lost_worker_closes_no_episode_of_the_next_one() -> None:
    started = list[Noting]()

    def start() -> Noting:
        started.append(Noting())
        return started[-1]

    pool = WorkerPool(start, 1)
    first, late = pool.seat(), pool.seat()
    started[0].dead = True
    with pytest.raises(WorkerLostError):
        first.ask("step")
    again = pool.seat()
    again.ask("reset")
    again.leave()
    with pytest.raises(WorkerLostError):
        late.ask("step")
    pool.seat().ask("reset")
    assert started[1].closed == [2]
