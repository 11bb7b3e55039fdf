"""Suites of ALFWorld tasks: game files below a folder, or generated games."""

import threading
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from qguide.qnet.errors import ConfigError
from qguide.training.environment import Task
from qguide.training.environments.alfworld.engines.python import PythonEnvironment
from qguide.training.environments.alfworld.engines.textworld import EnginePool, TextWorldEnvironment
from qguide.training.environments.alfworld.game.game import Game, load_game, scan_game
from qguide.training.environments.alfworld.game.game_files import write_game
from qguide.training.environments.alfworld.game.generator import generate_game

EngineName = Literal["python", "textworld"]
GAME_FILE = "game.tw-pddl"
GENERATED = "generated:"
CACHED_GAMES = 512


class AlfWorldSuite:
    """ALFWorld games and the engine that plays them; see `qguide.training.environment.Suite`."""

    def __init__(
        self, name: str, tasks: Sequence[Task], engine: EngineName = "python", *, processes: int = 2
    ) -> None:
        """Prepare the suite; engines are started when they are needed."""
        self.name = name
        self.tasks = tasks
        self._engine = engine
        self._load = lru_cache(CACHED_GAMES)(_load)
        self._pool = EnginePool(processes=processes)
        self._written: TemporaryDirectory[str] | None = None
        self._writing = threading.Lock()

    def make(self, task: Task) -> PythonEnvironment | TextWorldEnvironment:
        """A fresh, single-use episode of `task`."""
        if self._engine == "python":
            return PythonEnvironment(self._load(task.source))
        return TextWorldEnvironment(self._pool, self._file(task.source))

    def _file(self, source: str) -> Path:
        """The file of a game; a generated game is written to a file when it is first played."""
        if not source.startswith(GENERATED):
            return Path(source)
        with self._writing:
            if self._written is None:
                self._written = TemporaryDirectory(prefix="qguide-games-")
            path = Path(self._written.name) / source.removeprefix(GENERATED) / GAME_FILE
            if not path.exists():
                write_game(self._load(source), path)
        return path

    def close(self) -> None:
        """Stop worker processes and remove written games; safe to call twice."""
        self._pool.close()
        with self._writing:
            written, self._written = self._written, None
        if written is not None:
            written.cleanup()


def build_alfworld_suite(
    games_dir: Path, engine: EngineName = "python", *, processes: int = 2
) -> AlfWorldSuite:
    """Build the suite of the solvable games anywhere below a folder, sorted by id.

    Ids start with the goal type, so tasks that are spread evenly over them are spread over the goal
    types too.
    """
    tasks = sorted(_scan(games_dir), key=lambda task: task.id)
    if not tasks:
        raise ConfigError(
            f"no solvable {GAME_FILE} below {games_dir}; unpack the games there, or name another "
            "folder"
        )
    for first, second in pairwise(tasks):
        if first.id == second.id:
            raise ConfigError(
                f"{first.source} and {second.source} are the same task; name a folder that has "
                "only one of them"
            )
    return AlfWorldSuite(games_dir.name, tasks, engine, processes=processes)


def build_generated_suite(
    first_seed: int, count: int, engine: EngineName = "python", *, processes: int = 2
) -> AlfWorldSuite:
    """Build the suite of the games with seeds `first_seed` to `first_seed + count - 1`."""
    tasks = [_generated_task(seed) for seed in range(first_seed, first_seed + count)]
    name = f"generated-{first_seed}-{count}"
    return AlfWorldSuite(name, tasks, engine, processes=processes)


def _scan(games_dir: Path) -> list[Task]:
    tasks = []
    for path in games_dir.rglob(GAME_FILE):
        solvable, kind = scan_game(path)
        if solvable:
            tasks.append(Task("/".join(path.resolve().parts[-3:-1]), kind, str(path)))
    return tasks


def _generated_task(seed: int) -> Task:
    source = f"{GENERATED}{seed}"
    return Task(source, _load(source).goal.kind, source)


def _load(source: str) -> Game:
    if not source.startswith(GENERATED):
        return load_game(Path(source))
    return generate_game(int(source.removeprefix(GENERATED)))
