"""Environment bundle of ALFWorld, household tasks in text (Shridhar et al., 2021)."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from pydantic import Field

from qguide.qnet.types import TaskMarker
from qguide.training.environment import EnvironmentBundle, EnvironmentConfig
from qguide.training.environments.alfworld.expert.expert import Expert
from qguide.training.environments.alfworld.expert.policy import ExpertPolicy
from qguide.training.environments.alfworld.game.observation import NOTHING_HAPPENS, TASK_OPENING
from qguide.training.environments.alfworld.generate import generate_games
from qguide.training.environments.alfworld.read_pairs import read_pairs
from qguide.training.environments.alfworld.suite import (
    AlfWorldSuite,
    build_alfworld_suite,
    build_generated_suite,
)


class AlfWorldConfig(EnvironmentConfig):
    """ALFWorld's `[environment]` table.

    Attributes:
        engine: "python", or "textworld" for ALFWorld's own engine, which is slow.
        games: folder of the game files; without it, games are generated.
        first_seed: seed of the first generated game.
        count: number of generated games.
        processes: number of worker processes of the textworld engine.
    """

    name: Literal["alfworld"] = "alfworld"
    engine: Literal["python", "textworld"] = "python"
    games: Path | None = None
    first_seed: int = Field(default=0, ge=0)
    count: int = Field(default=100, ge=1)
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


def write_games(output: Path, *, count: int, first_seed: int) -> Mapping[str, object]:
    """Write generated games in the format of ALFWorld's own."""
    return asdict(generate_games(output, count=count, first_seed=first_seed))


ALFWORLD = EnvironmentBundle(
    name="alfworld",
    config=AlfWorldConfig,
    build_suite=build_suite,
    task_markers=(TaskMarker(TASK_OPENING),),
    void_observation=NOTHING_HAPPENS,
    build_expert=Expert,
    build_expert_policy=ExpertPolicy,
    read_pairs=read_pairs,
    write_games=write_games,
    packages=("alfworld", "textworld"),
    harmless="look",
)
