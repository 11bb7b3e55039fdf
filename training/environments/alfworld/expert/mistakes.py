"""Mistakes like those of a half-trained policy, from which an expert recovers."""

from random import Random

from qguide.training.environments.alfworld.expert.goals import TREATMENTS, Reply
from qguide.training.environments.alfworld.expert.memory import HouseMemory
from qguide.training.environments.alfworld.game.observation import kind_of


def mistake(memory: HouseMemory, rng: Random) -> Reply:
    """A random decision about objects and places of the house; it may happen to be right."""
    choices = [_go_astray(memory, rng)]
    if memory.at is not None:
        choices += _misread(memory, memory.at, rng)
        if memory.held is None:
            choices += _take(memory, memory.at)
        else:
            choices += _misuse(memory, memory.at, memory.held, rng)
    return rng.choice(choices)


def misreading(memory: HouseMemory, rng: Random) -> Reply:
    """Claim an object that is not here, or overlook one that is: small policies' main mistake."""
    if memory.at is None or memory.held is not None or memory.seen_at(memory.at, memory.task.item):
        return _go_astray(memory, rng)
    return _misread(memory, memory.at, rng)[0]


def _go_astray(memory: HouseMemory, rng: Random) -> Reply:
    """Go to any place, such as one seen before, the target too early, or the present one."""
    targets = memory.all_of(memory.task.target)
    place = rng.choice([*targets[-1:], *memory.receptacles]) if memory.receptacles else ""
    return Reply("Not here.", f"Next is {place}.", f"go to {place}")


def _take(memory: HouseMemory, at: str) -> list[Reply]:
    """Take an object that is not needed."""
    items = [i for i in memory.contents.get(at, ()) if kind_of(i) != memory.task.item]
    return [Reply(f"{item} is here.", "I take it.", f"take {item} from {at}") for item in items[:1]]


def _misuse(memory: HouseMemory, at: str, held: str, rng: Random) -> list[Reply]:
    """Put the object down here, or apply a treatment that is unwanted or impossible."""
    verb, _, appliance = rng.choice([*TREATMENTS.values()])
    place = next(iter(memory.all_of(appliance)), at)
    return [
        Reply(f"{at} is here.", f"I put {held}.", f"put {held} in/on {at}"),
        Reply(f"{place} is here.", f"I {verb} {held}.", f"{verb} {held} with {place}"),
    ]


def _misread(memory: HouseMemory, at: str, rng: Random) -> list[Reply]:
    """Take an object that is not here, or open a receptacle that does not open."""
    item = f"{memory.task.item} {rng.randint(1, 4)}"
    return [
        Reply(f"{item} is here.", "I take it.", f"take {item} from {at}"),
        Reply(f"{at} is closed.", "I open it.", f"open {at}"),
    ]
