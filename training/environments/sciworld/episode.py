"""One ScienceWorld episode."""

from typing import Any, Final

from qguide.qnet.errors import EnvironmentFailureError
from qguide.training.environment import StepResult
from qguide.training.environments.sciworld.simulator import Simulator, SimulatorPool

NOT_UNDERSTOOD: Final = "No known action matches that input."


class SciWorldEpisode:
    """See `qguide.training.environment.Environment`.

    The reward is the score, in [0, 1]: every part of the task that is done counts, also where the
    episode is cut off. A score below 0 says that the task is lost; it counts 0.
    """

    def __init__(self, pool: SimulatorPool, task: str, variation: int, turns: int) -> None:
        """Prepare the episode; `reset` loads the world."""
        self._pool = pool
        self._task, self._variation, self._turns = task, variation, turns
        self._simulator: Simulator | None = None
        self._world: Any = None
        self._taken = 0
        self._over = False

    def reset(self) -> str:
        """Start the episode: the task, and what is seen."""
        if self._simulator is None:
            self._simulator = self._pool.acquire()
        if self._world is None:
            self._world = self._simulator.open_world()
        self._taken, self._over = 0, False
        return self._simulator.load(self._world, self._task, self._variation)

    def step(self, action: str) -> StepResult:
        """Take one action."""
        if self._simulator is None or self._world is None or self._over:
            raise EnvironmentFailureError(f"step({action!r}): no episode is running; reset first")
        answer = self._simulator.step(self._world, action.strip())
        self._taken += 1
        finished = answer.completed or answer.score < 0
        self._over = finished or self._taken >= self._turns
        return StepResult(
            answer.observation,
            min(1.0, max(0.0, answer.score)),
            terminated=finished,
            valid=answer.observation != NOT_UNDERSTOOD,
            truncated=self._over and not finished,
        )

    def close(self) -> None:
        """Give the world back; safe to call twice."""
        simulator, world = self._simulator, self._world
        self._simulator = self._world = None
        if simulator is not None:
            if world is not None:
                simulator.close_world(world)
            self._pool.release(simulator)
