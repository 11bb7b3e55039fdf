"""The one place where an environment's name becomes a suite."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qnet.errors import ConfigError
from training.environment import Suite
from training.environments.corridor import CorridorSuite

EnvironmentName = Literal["alfworld", "fake"]


@dataclass(frozen=True, slots=True)
class SuiteSpec:
    """Which tasks to play, and in which engine.

    Attributes:
        environment: "alfworld" or "fake".
        games: the folder of ALFWorld's game files; None plays generated games.
        engine: "python", or "textworld", ALFWorld's own.
        limit: at most so many tasks; for generated and fake ones, how many.
        first_seed: where generated and fake tasks begin.
        processes: worker processes of the textworld engine.
    """

    environment: EnvironmentName
    games: Path | None = None
    engine: Literal["python", "textworld"] = "python"
    limit: int | None = None
    first_seed: int = 0
    processes: int = 2


DEFAULT_COUNT = 100


def build_suite(spec: SuiteSpec) -> Suite:
    """The suite that `spec` describes.

    Raises:
        ConfigError: the name is unknown, or there are no games to play.
        InvalidGameError: a game file is malformed.
    """
    count = DEFAULT_COUNT if spec.limit is None else spec.limit
    match spec.environment:
        case "fake":
            return CorridorSuite(spec.first_seed, count)
        case "alfworld":
            return _build_alfworld(spec, count)
    raise ConfigError(f"environment {spec.environment!r} is none of alfworld, fake")


def _build_alfworld(spec: SuiteSpec, count: int) -> Suite:
    from training.environments.alfworld.suite import build_alfworld_suite, build_generated_suite

    if spec.games is not None:
        return build_alfworld_suite(spec.games, spec.engine, spec.limit, processes=spec.processes)
    return build_generated_suite(spec.first_seed, count, spec.engine, processes=spec.processes)
