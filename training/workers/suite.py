"""A suite whose episodes run in workers, and are taken up again elsewhere if a worker is lost.

An environment that replays (see `Environment`) comes to the same state by the same actions. So a
lost worker costs no draws and changes no row: the episode goes on where it was. Others have to be
begun again: their task fails with `WorkerLostError`, and the job plays it again as a whole.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from qguide.qnet.errors import EnvironmentFailureError
from qguide.qnet.types import ToolCall
from qguide.training.environment import EnvironmentConfig, GoldSuite, StepResult, Suite, Task
from qguide.training.processes.messages import DeadlyRequestError, WorkerClosedError, WorkerLostError
from qguide.training.processes.worker import ProcessWorker
from qguide.training.trajectory import Action
from qguide.training.workers.config import Workers
from qguide.training.workers.host import EnvironmentHost, spec_of
from qguide.training.workers.pool import MAX_WORKER_LOSSES, Seat, WorkerPool
from qguide.training.workers.ray_actors import ray_pool


class RemoteEpisode:
    """See `qguide.training.environment.Environment`."""

    def __init__(self, pool: WorkerPool, task_id: str, *, replays: bool) -> None:
        self._pool, self._task_id, self._replays = pool, task_id, replays
        self._seat: Seat | None = None
        self._origin: tuple[Any, ...] = ()
        self._taken: list[Action] = []
        self._shown: tuple[object, ...] = ()

    def reset(self) -> str:
        """Start the episode."""
        self._origin, self._taken, self._shown = (), [], ()
        observation: str = self._try(lambda: self._take_seat().ask("reset", self._task_id))
        self._shown = (observation,)
        return observation

    def step(self, action: str) -> StepResult:
        """Take one action."""
        return self._act(action)

    def close(self) -> None:
        """Give the worker's seat back; safe to call twice."""
        self._shown = ()
        self._leave()

    def _leave(self) -> None:
        seat, self._seat = self._seat, None
        if seat is not None:
            seat.leave()

    def _act(self, action: Action) -> StepResult:
        result: StepResult = self._try(lambda: self._resumed().ask("act", action))
        self._taken.append(action)
        self._shown = (result.observation, result.reward, result.terminated)
        return result

    def _take_seat(self) -> Seat:
        if self._seat is None:
            self._seat = self._pool.seat()
        return self._seat

    def _resumed(self) -> Seat:
        """The seat, on which the episode is where it was."""
        if not self._shown:
            raise EnvironmentFailureError(f"{self._task_id}: no episode is running; reset first")
        if self._seat is not None:
            return self._seat
        seat = self._take_seat()
        shown: tuple[object, ...] = (seat.ask("reset", self._task_id),)
        if self._origin:
            seat.ask("restore", *self._origin)
            shown = self._shown if not self._taken else shown
        for action in self._taken:
            result: StepResult = seat.ask("act", action)
            shown = (result.observation, result.reward, result.terminated)
        if shown != self._shown:
            self._leave()
            raise WorkerLostError(
                f"{self._task_id}: a worker was lost, and its episode's replay differs at action "
                f"{len(self._taken)}; the task has to be played again"
            )
        return seat

    def _try(self, request: Any) -> Any:
        losses = 0
        while True:
            try:
                return request()
            except WorkerLostError as error:
                if self._seat is None:  # a replay differed
                    raise
                self._leave()
                # What a worker died of while this request waited for it is another episode's.
                losses += not isinstance(error, WorkerClosedError)
                if losses == MAX_WORKER_LOSSES:
                    raise DeadlyRequestError(
                        f"{self._task_id}: {losses} workers were lost at action "
                        f"{len(self._taken) + 1}; the last: {error}"
                    ) from error
                if self._shown and not self._replays:
                    raise


class _Tools(RemoteEpisode):
    """See `qguide.training.environment.ToolEnvironment`."""

    def call(self, call: ToolCall) -> StepResult:
        """Call one tool."""
        return self._act(call)


class _Snapshots(RemoteEpisode):
    """See `qguide.training.environment.SnapshotEnvironment`."""

    def snapshot(self) -> object:
        """The present state."""
        return self._try(lambda: self._resumed().ask("snapshot"))

    def restore(self, snapshot: object) -> None:
        """Go on from a state of the same task."""
        self._try(lambda: self._resumed().ask("restore", snapshot))
        self._origin, self._taken = (snapshot,), []


class _ToolsAndSnapshots(_Tools, _Snapshots):
    """Both."""


_EPISODES = {
    (False, False): RemoteEpisode,
    (True, False): _Tools,
    (False, True): _Snapshots,
    (True, True): _ToolsAndSnapshots,
}
"""By the abilities of the environment's episodes: tools, and snapshots."""


class RemoteSuite:
    """See `qguide.training.environment.Suite`."""

    def __init__(self, suite: Suite, pool: WorkerPool, *, replays: bool) -> None:
        self.losses = pool.losses
        self.name = suite.name
        self.tasks: Sequence[Task] = suite.tasks
        self._suite, self._pool, self._replays = suite, pool, replays
        self._episode = _EPISODES[pool.ask("abilities", self.tasks[0].id)]

    def make(self, task: Task) -> RemoteEpisode:
        """A fresh, single-use episode of `task`."""
        return self._episode(self._pool, task.id, replays=self._replays)

    def close(self) -> None:
        """End the workers; safe to call twice."""
        self._pool.close()
        self._suite.close()


class RemoteGoldSuite(RemoteSuite):
    """See `qguide.training.environment.GoldSuite`."""

    def gold_replies(self, task: Task) -> Sequence[str]:
        """Replies that solve `task`."""
        replies: Sequence[str] = self._pool.ask("gold_replies", task.id)
        return replies


def move_to_workers(suite: Suite, config: EnvironmentConfig, workers: Workers, *, replays: bool) -> Suite:
    """The same suite with its episodes in workers; the suite itself where they run inline."""
    if workers.executor == "inline":
        return suite
    spec = spec_of(config)
    if workers.executor == "ray":
        pool = ray_pool(spec, workers)
    else:
        pool = WorkerPool(
            partial(ProcessWorker, partial(EnvironmentHost, spec), timeout_s=workers.timeout_s), workers.count
        )
    try:
        build = RemoteGoldSuite if isinstance(suite, GoldSuite) else RemoteSuite
        return build(suite, pool, replays=replays)
    except BaseException:
        pool.close()
        raise
