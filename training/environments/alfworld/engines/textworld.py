"""ALFWorld's own TextWorld engine behind the Environment protocol, in worker processes.

Every episode is a session in one of a few workers (`textworld_worker`). A game always goes to the
same slot of the pool, so playing it again needs a reset instead of a load. Starting an episode
takes 0.03 s if the engine still has the game loaded, 0.15 s if only its translation is cached, and
0.4 to 2 s the first time.
"""

import contextlib
import itertools
import json
import select
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

from qguide.qnet.errors import EnvironmentFailureError
from qguide.training.environment import StepResult

BANNER = "-= Welcome to TextWorld, ALFRED! =-\n\n"
_WORKER = Path(__file__).with_name("textworld_worker.py")
_EXIT_TIMEOUT_S = 5.0


class WorkerProcess:
    """One worker process, which answers the requests of all threads one by one."""

    def __init__(self, *, timeout_s: float) -> None:
        """Start the process; the first answer waits for its imports."""
        # Not a `ManagedProcess`: that is the server's, which training must not import.
        # Without -P, `import textworld` in the worker would find this module.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self.games: set[str] = set()
        self.open_sessions = 0

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    def ask(self, **request: object) -> dict[str, Any]:
        """Send a request and wait for the worker's reply."""
        with self._lock:
            reply = self._exchange(json.dumps(request) + "\n")
        if "error" in reply:
            raise EnvironmentFailureError(f"{request['op']} failed in TextWorld: {reply['error']}")
        return reply

    def _exchange(self, line: str) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None or stdin.closed:
            raise EnvironmentFailureError("the TextWorld worker was closed; make a new episode")
        try:
            stdin.write(line)
            stdin.flush()
            answer = stdout.readline() if self._readable(stdout) else ""
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._process.kill()
            self.stop()
            raise EnvironmentFailureError(
                f"the TextWorld worker did not answer within {self._timeout_s:g} s (exit status"
                f" {self._process.returncode}); check that it is installed: pip install alfworld"
                " textworld[pddl]"
            )
        reply: dict[str, Any] = json.loads(answer)
        return reply

    def _readable(self, stdout: Any) -> bool:
        ready, _, _ = select.select([stdout], [], [], self._timeout_s)
        return bool(ready)

    def stop(self) -> None:
        """End the process by closing its input, or kill it; safe to call twice."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is not None and not stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                stdin.close()
        try:
            self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if stdout is not None:
            stdout.close()


class TextWorldEnvironment:
    """One episode of a game file; see `qguide.training.environment.Environment`."""

    def __init__(self, pool: "EnginePool", game: Path) -> None:
        """Prepare the episode; `reset` loads the game."""
        self._pool = pool
        self._game = str(game)
        self._worker: WorkerProcess | None = None
        self._session = pool.next_session()
        self.won = False

    def reset(self) -> str:
        """Start the episode and describe the room and the task, without TextWorld's banner."""
        if self._worker is None:
            self._worker = self._pool.acquire(self._game)
        reply = self._worker.ask(op="reset", session=self._session, game=self._game)
        self.won = reply["won"]
        return str(reply["observation"]).removeprefix(BANNER)

    def step(self, action: str) -> StepResult:
        """Take one action; an inadmissible action changes nothing."""
        if self._worker is None or self.won:
            state = "is over" if self.won else "was not reset"
            raise EnvironmentFailureError(f"step({action!r}): the episode {state}; make a new one")
        reply = self._worker.ask(op="step", session=self._session, action=action)
        self.won = reply["won"]
        return StepResult(reply["observation"], float(self.won), self.won, valid=reply["valid"])

    def admissible_actions(self) -> list[str]:
        """Every action that has an effect now, sorted; the agent never sees this list."""
        if self._worker is None:
            raise EnvironmentFailureError("the episode was not reset; call reset first")
        return list(self._worker.ask(op="admissible", session=self._session)["actions"])

    def close(self) -> None:
        """Leave the loaded engine to the next episode of the game."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._pool.release(worker, self._session)


class EnginePool:
    """A few worker processes that many episodes share.

    The number of sessions is unlimited; each process takes one step at a time.
    """

    def __init__(
        self, *, processes: int = 2, games_per_process: int = 200, timeout_s: float = 120.0
    ) -> None:
        """Prepare the pool; each worker starts with its first game.

        Args:
            processes: number of workers, and so of steps taken at the same time.
            games_per_process: number of distinct games (about 5 MB each) after which a worker is
                replaced, once its last episode has ended.
            timeout_s: longest wait for one answer, after which the worker is killed.
        """
        self._slots: list[WorkerProcess | None] = [None] * processes
        self._retired: list[WorkerProcess] = []
        self._games_per_process = games_per_process
        self._timeout_s = timeout_s
        self._sessions = itertools.count(1)
        self._lock = threading.Lock()

    def next_session(self) -> int:
        """A session number that is new in this pool."""
        return next(self._sessions)

    def acquire(self, game: str) -> WorkerProcess:
        """The worker for one episode of `game`, which must be released afterwards."""
        slot = zlib.crc32(game.encode()) % len(self._slots)
        with self._lock:
            worker = self._slots[slot]
            if worker is None or not worker.alive or self._is_full(worker, game):
                if worker is not None:
                    self._retire(worker)
                worker = self._slots[slot] = WorkerProcess(timeout_s=self._timeout_s)
            worker.games.add(game)
            worker.open_sessions += 1
        return worker

    def release(self, worker: WorkerProcess, session: int) -> None:
        """End an episode; the last one of a retired worker ends its process."""
        with contextlib.suppress(EnvironmentFailureError):  # a dead worker has no sessions
            worker.ask(op="close", session=session)
        with self._lock:
            worker.open_sessions -= 1
            if worker in self._retired and worker.open_sessions == 0:
                self._retired.remove(worker)
                worker.stop()

    def close(self) -> None:
        """Stop every worker; safe to call twice."""
        with self._lock:
            workers = [worker for worker in (*self._slots, *self._retired) if worker is not None]
            self._slots = [None] * len(self._slots)
            self._retired = []
        for worker in workers:
            worker.stop()

    def _is_full(self, worker: WorkerProcess, game: str) -> bool:
        return len(worker.games) >= self._games_per_process and game not in worker.games

    def _retire(self, worker: WorkerProcess) -> None:
        if worker.open_sessions and worker.alive:
            self._retired.append(worker)
        else:
            worker.stop()
