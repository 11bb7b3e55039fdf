"""Generated games as files, for other programs that play ALFWorld games.

    qguide generate --count 100 --seed 0 --output DIR

writes them under names like those of the real games; a second run writes only missing ones:

    pick_heat_then_place_in_recep-Apple-None-Fridge-12/trial_seed00000011/game.tw-pddl
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from qguide.training.environments.alfworld.game.game import Goal
from qguide.training.environments.alfworld.game.game_files import write_game
from qguide.training.environments.alfworld.game.generator import draw_game
from qguide.training.environments.alfworld.suite import GAME_FILE
from qguide.training.progress import ProgressBar

_TRIAL = re.compile(r"trial_seed(\d+)")
_FIRST_SCENES = {"kitchen": 1, "living room": 201, "bedroom": 301, "bathroom": 401}
_SCENES = 30
"""Number of ALFWorld's scenes for each kind of room; games of one scene differ in their seeds."""


@dataclass(frozen=True, slots=True)
class Generated:
    """Result of a run.

    Attributes:
        written: number of games that it wrote.
        kept: number of games that were there before.
    """

    written: int
    kept: int


def generate_games(
    output: Path, *, count: int, first_seed: int = 0, console: Console | None = None
) -> Generated:
    """Write those games of `count` seeds, from `first_seed` on, that `output` lacks."""
    wanted = range(first_seed, first_seed + count)
    there = set(_seeds_in(output)) & set(wanted)
    with ProgressBar("generate", total=count, done=len(there), console=console) as bar:
        for seed in wanted:
            if seed not in there:
                room, game = draw_game(seed)
                write_game(game, output / _folder(seed, room, game.goal) / GAME_FILE)
                bar.advance(game.goal.kind)
    return Generated(written=count - len(there), kept=len(there))


def _seeds_in(output: Path) -> Iterator[int]:
    for path in output.glob(f"*/*/{GAME_FILE}"):
        if match := _TRIAL.fullmatch(path.parent.name):
            yield int(match[1])


def _folder(seed: int, room: str, goal: Goal) -> str:
    target = goal.receptacle_kind or goal.lamp_kind or ""
    scene = _FIRST_SCENES[room] + seed % _SCENES
    task = f"{goal.kind}-{goal.item_kind.capitalize()}-None-{target.capitalize()}-{scene}"
    return f"{task}/trial_seed{seed:08d}"
