"""Mistakes like those that a half-trained policy makes, for an expert to recover from."""

from random import Random

from training.environments.alfworld.memory import HouseMemory
from training.environments.alfworld.observation import kind_of, number_of
from training.environments.alfworld.treatments import TREATMENTS, Decision


def mistake(memory: HouseMemory, rng: Random) -> Decision:
    """A thought and an action that need not be right, drawn from what there is in the house."""
    choices = [_go_astray(memory, rng)]
    if memory.at is not None:
        choices.append(_misread(memory, memory.at, rng))
        if memory.held is None:
            choices += _take(memory, memory.at)
        else:
            choices += _misuse(memory, memory.at, memory.held, rng)
    return rng.choice(choices)


def _go_astray(memory: HouseMemory, rng: Random) -> Decision:
    """To any place: one seen before, the target too early, or the one where one stands."""
    targets = memory.all_of(memory.task.target)
    place = rng.choice([*targets[:1], *memory.receptacles]) if memory.receptacles else ""
    return f". Not here. Next is {place}.", f"go to {place}"


def _take(memory: HouseMemory, at: str) -> list[Decision]:
    """Something that is not needed."""
    items = [i for i in memory.contents.get(at, ()) if kind_of(i) != memory.task.item]
    return [
        (f" {number_of(item)}. It is here. I take it.", f"take {item} from {at}")
        for item in items[:1]
    ]


def _misuse(memory: HouseMemory, at: str, held: str, rng: Random) -> list[Decision]:
    """Put it down here, or a treatment that nobody asked for or that does not work here."""
    verb, _, appliance = rng.choice([*TREATMENTS.values()])
    place = next(iter(memory.all_of(appliance)), at)
    number = number_of(held)
    return [
        (f" {number}. I put it here.", f"put {held} in/on {at}"),
        (f" {number}. {place} is here. I {verb} it.", f"{verb} {held} with {place}"),
    ]


def _misread(memory: HouseMemory, at: str, rng: Random) -> Decision:
    """Take what is not here, or open what does not open."""
    number = rng.randint(1, 4)
    if rng.random() < 0.5:
        return f" {number}. It is here. I take it.", f"take {memory.task.item} {number} from {at}"
    return f". {at} is closed. I open it.", f"open {at}"
