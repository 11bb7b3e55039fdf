"""ALFWorld as the jobs know it: household tasks in text (Shridhar et al., 2021)."""

import re
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from pydantic import Field

from qguide.qnet.errors import ConfigError
from qguide.qnet.types import TaskMarker
from qguide.training.environment import EnvironmentBundle, NumberedConfig, Task
from qguide.training.environments.alfworld.engines.python import PythonEnvironment
from qguide.training.environments.alfworld.engines.textworld import EnginePool, TextWorldEnvironment
from qguide.training.environments.alfworld.expert.expert import AlfWorldExpert
from qguide.training.environments.alfworld.expert.policy import ExpertPolicy
from qguide.training.environments.alfworld.game.game import AlfWorldGame, Goal, load_game, scan_game
from qguide.training.environments.alfworld.game.game_files import write_game
from qguide.training.environments.alfworld.game.generator import draw_game, generate_game
from qguide.training.environments.alfworld.game.observation import NOTHING_HAPPENS, TASK_OPENING
from qguide.training.progress import ProgressBar

EngineName = Literal["python", "textworld"]
GAME_FILE = "game.tw-pddl"
GENERATED = "generated:"
CACHED_GAMES = 512


class AlfWorldSuite:
    """ALFWorld games and the engine that plays them; see `qguide.training.environment.Suite`."""

    def __init__(self, name: str, tasks: Sequence[Task], engine: EngineName = "python", *, processes: int = 2) -> None:
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


def build_alfworld_suite(games_dir: Path, engine: EngineName = "python", *, processes: int = 2) -> AlfWorldSuite:
    """Build the suite of the solvable games anywhere below a folder, sorted by id.

    Ids start with the goal type, so tasks that are spread evenly over them are spread over the goal
    types too.
    """
    tasks = sorted(_scan(games_dir), key=lambda task: task.id)
    if not tasks:
        raise ConfigError(f"no solvable {GAME_FILE} below {games_dir}; unpack the games there, or name another folder")
    for first, second in pairwise(tasks):
        if first.id == second.id:
            raise ConfigError(
                f"{first.source} and {second.source} are the same task; name a folder that has only one of them"
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


def _load(source: str) -> AlfWorldGame:
    if not source.startswith(GENERATED):
        return load_game(Path(source))
    return generate_game(int(source.removeprefix(GENERATED)))


_TRIAL = re.compile(r"trial_seed(\d+)")
_FIRST_SCENES = {"kitchen": 1, "living room": 201, "bedroom": 301, "bathroom": 401}
_SCENES = 30
"""Number of ALFWorld's scenes for each kind of room; games of one scene differ in their seeds."""


def write_games(output: Path, *, count: int, first_seed: int) -> dict[str, int]:
    """Write those games of `count` seeds, from `first_seed` on, that `output` lacks, in ALFWorld's own format."""
    wanted = range(first_seed, first_seed + count)
    there = set(_seeds_in(output)) & set(wanted)
    with ProgressBar("generate", total=count, done=len(there)) as bar:
        for seed in wanted:
            if seed not in there:
                room, game = draw_game(seed)
                write_game(game, output / _folder(seed, room, game.goal) / GAME_FILE)
                bar.advance(game.goal.kind)
    return {"written": count - len(there), "kept": len(there)}


def _seeds_in(output: Path) -> Iterator[int]:
    for path in output.glob(f"*/*/{GAME_FILE}"):
        if match := _TRIAL.fullmatch(path.parent.name):
            yield int(match[1])


def _folder(seed: int, room: str, goal: Goal) -> str:
    target = goal.receptacle_kind or goal.lamp_kind or ""
    scene = _FIRST_SCENES[room] + seed % _SCENES
    task = f"{goal.kind}-{goal.item_kind.capitalize()}-None-{target.capitalize()}-{scene}"
    return f"{task}/trial_seed{seed:08d}"


class AlfWorldConfig(NumberedConfig):
    """ALFWorld's `[environment]` table.

    Attributes:
        engine: "python", or "textworld" for ALFWorld's own engine, which is slow.
        games: folder of the game files; without it, games are generated.
        processes: number of worker processes of the textworld engine.
    """

    name: Literal["alfworld"] = "alfworld"
    engine: Literal["python", "textworld"] = "python"
    games: Path | None = None
    processes: int = Field(default=2, ge=1)

    @property
    def threads(self) -> int:
        """Number of environment calls that run in parallel; 0 for the fast engine."""
        return 2 * self.processes if self.engine == "textworld" else 0


def build_suite(config: AlfWorldConfig) -> AlfWorldSuite:
    """Build the suite of the games that `config` describes."""
    engine, processes = config.engine, config.processes
    if config.games is not None:
        return build_alfworld_suite(config.games, engine, processes=processes)
    return build_generated_suite(config.first_seed, config.count, engine, processes=processes)


ALFWORLD = EnvironmentBundle(
    name="alfworld",
    config=AlfWorldConfig,
    build_suite=build_suite,
    task_markers=(TaskMarker(TASK_OPENING),),
    void_observation=NOTHING_HAPPENS,
    build_expert=AlfWorldExpert,
    build_expert_policy=ExpertPolicy,
    write_games=write_games,
    packages=("alfworld", "textworld"),
    harmless="look",
)
