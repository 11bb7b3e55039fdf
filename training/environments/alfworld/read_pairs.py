"""Read pairs: one reply in two histories, of which only one shows the object that it takes.

The two histories differ in one name of the last list ("you see a book 2, and a pen 1"). A Q model
that gives the reply the same value in both has not compared the reply with the list. The second
history is edited text; no environment is needed for it.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random

from qguide.qnet.types import History
from qguide.training.environment import ReadPair
from qguide.training.environments.alfworld.game.observation import kind_of, read_scene
from qguide.training.environments.alfworld.game.statistics import load_statistics
from qguide.training.trajectory import parse_action

_TAKE = re.compile(r"take ([a-z]+ \d+) from ([a-z]+ \d+)")


def read_pairs(history: History, replies: Sequence[str], rng: Random) -> list[ReadPair]:
    """The pairs of every `take` that follows a list of the same receptacle."""
    going = (reply for reply in replies if parse_action(reply).startswith("go to "))
    rival = next(going, None)
    pairs = []
    for reply in replies:
        if (exchanged := _exchange(history, parse_action(reply), rng)) is not None:
            there, other = exchanged
            pairs.append(
                ReadPair(history, other, reply, "present", rival)
                if there
                else ReadPair(other, history, reply, "absent", rival)
            )
    return pairs


def _exchange(history: History, action: str, rng: Random) -> tuple[bool, History] | None:
    """Presence of the object in the last list, and the history with the opposite list."""
    take = _TAKE.fullmatch(action)
    scene = read_scene(history[-1].content)
    if take is None or take[2] != scene.receptacle or not scene.contents:
        return None
    wanted = take[1]
    there = wanted in scene.contents
    said = " ".join(message.content for message in history)
    strangers = [kind for kind in _kinds() if kind not in said and kind != kind_of(wanted)]
    if there and not strangers:
        return None
    old = wanted if there else rng.choice(scene.contents)
    new = f"{rng.choice(strangers)} {rng.randint(1, 3)}" if there else wanted
    text = re.sub(rf"\b{old}\b", new, history[-1].content)
    return there, (*history[:-1], replace(history[-1], content=text))


@cache
def _kinds() -> tuple[str, ...]:
    """All kinds of objects in ALFWorld's houses."""
    rooms = load_statistics().rooms.values()
    return tuple(sorted({kind for room in rooms for kind in room.item_numbers}))
