"""ALFWorld's own TextWorld engine behind the Environment protocol, in worker processes.

Every episode is a session in one of a few workers (`textworld_worker`). A game always goes to the
same slot of the pool, so playing it again needs a reset instead of a load. Starting an episode
takes 0.03 s if the engine still has the game loaded, 0.15 s if only its translation is cached, and
0.4 to 2 s the first time.
"""

import contextlib
import itertools
import threading
import zlib
from pathlib import Path
from typing import Any

from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.qnet.packages import install
from qguide.training.environment import StepResult
from qguide.training.processes.messages import Request
from qguide.training.processes.worker import ProcessWorker

BANNER = "-= Welcome to TextWorld, ALFRED! =-\n\n"


def _sessions() -> Any:
    """The sessions of a worker, whose libraries are imported there."""
    try:
        from qguide.training.environments.alfworld.engines.textworld_worker import open_sessions
    except ImportError as error:
        raise ConfigError(f"the TextWorld engine does not start ({error}); {install('alfworld')}") from error
    return open_sessions()


class EngineProcess(ProcessWorker):
    """One worker process."""

    def __init__(self, *, timeout_s: float) -> None:
        """Start the process; the first answer waits for its imports."""
        super().__init__(_sessions, timeout_s=timeout_s)
        self.games: set[str] = set()
        self.open_sessions = 0

    def call(self, method: str, *arguments: object) -> Any:
        """Call a method of the sessions."""
        return self.ask(Request(method, arguments)).result()


class TextWorldEnvironment:
    """One episode of a game file; see `qguide.training.environment.Environment`."""

    def __init__(self, pool: "EnginePool", game: Path) -> None:
        self._pool = pool
        self._game = str(game)
        self._worker: EngineProcess | None = None
        self._session = pool.next_session()
        self.won = False

    def reset(self) -> str:
        """Start the episode and describe the room and the task, without TextWorld's banner."""
        if self._worker is None:
            self._worker = self._pool.acquire(self._game)
        observation, self.won = self._worker.call("reset", self._session, self._game)
        return str(observation).removeprefix(BANNER)

    def step(self, action: str) -> StepResult:
        """Take one action; an inadmissible action changes nothing."""
        if self._worker is None or self.won:
            state = "is over" if self.won else "was not reset"
            raise EnvironmentFailureError(f"step({action!r}): the episode {state}; make a new one")
        observation, self.won, valid = self._worker.call("step", self._session, action)
        return StepResult(observation, float(self.won), self.won, valid=valid)

    def admissible_actions(self) -> list[str]:
        """Every action that has an effect now, sorted; the agent never sees this list."""
        if self._worker is None:
            raise EnvironmentFailureError("the episode was not reset; call reset first")
        return list(self._worker.call("admissible", self._session))

    def close(self) -> None:
        """Leave the loaded engine to the next episode of the game."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._pool.release(worker, self._session)


class EnginePool:
    """A few worker processes that many episodes share.

    The number of sessions is unlimited; each process takes one step at a time.
    """

    def __init__(self, *, processes: int = 2, games_per_process: int = 200, timeout_s: float = 120.0) -> None:
        """Prepare the pool; each worker starts with its first game.

        Args:
            games_per_process: number of distinct games (about 5 MB each) after which a worker is
                replaced, once its last episode has ended.
        """
        self._slots: list[EngineProcess | None] = [None] * processes
        self._retired: list[EngineProcess] = []
        self._games_per_process = games_per_process
        self._timeout_s = timeout_s
        self._sessions = itertools.count(1)
        self._lock = threading.Lock()

    def next_session(self) -> int:
        """A session number that is new in this pool."""
        return next(self._sessions)

    def acquire(self, game: str) -> EngineProcess:
        """The worker for one episode of `game`, which must be released afterwards."""
        slot = zlib.crc32(game.encode()) % len(self._slots)
        with self._lock:
            worker = self._slots[slot]
            if worker is None or not worker.alive or self._is_full(worker, game):
                if worker is not None:
                    self._retire(worker)
                worker = self._slots[slot] = EngineProcess(timeout_s=self._timeout_s)
            worker.games.add(game)
            worker.open_sessions += 1
        return worker

    def release(self, worker: EngineProcess, session: int) -> None:
        """End an episode; the last one of a retired worker ends its process."""
        # A worker that died or did not start has no sessions.
        with contextlib.suppress(EnvironmentFailureError, ConfigError):
            worker.call("close", session)
        with self._lock:
            worker.open_sessions -= 1
            if worker in self._retired and worker.open_sessions == 0:
                self._retired.remove(worker)
                worker.close()

    def close(self) -> None:
        """Stop every worker; safe to call twice."""
        with self._lock:
            workers = [worker for worker in (*self._slots, *self._retired) if worker is not None]
            self._slots = [None] * len(self._slots)
            self._retired = []
        for worker in workers:
            worker.close()

    def _is_full(self, worker: EngineProcess, game: str) -> bool:
        return len(worker.games) >= self._games_per_process and game not in worker.games

    def _retire(self, worker: EngineProcess) -> None:
        if worker.open_sessions and worker.alive:
            self._retired.append(worker)
        else:
            worker.close()
