"""Parser of ALFWorld's texts: task sentences, lists of receptacles, and observations."""

import re
from dataclasses import dataclass
from functools import lru_cache

from qguide.qnet.errors import EnvironmentFailureError
from qguide.training.environments.alfworld.game.game import GoalKind

NOTHING_HAPPENS = "Nothing happens."
_NAME = r"[a-z]+ \d+"
_NAMED = re.compile(rf"\ban? ({_NAME})")
_OPEN = re.compile(rf"(?:On the ({_NAME}), |The ({_NAME}) is open\. In it, )you see (.*)\.")
_CLOSED = re.compile(rf"The ({_NAME}) is closed\.")
_TAKEN = re.compile(rf"You pick up the ({_NAME}) from the ({_NAME})\.")
_PUT = re.compile(rf"You put the ({_NAME}) in/on the ({_NAME})\.")
_TREATED = re.compile(rf"You (clean|heat|cool) the ({_NAME}) using the {_NAME}\.")

_TASKS: tuple[tuple[GoalKind, re.Pattern[str]], ...] = (
    ("look_at_obj_in_light", re.compile(r"examine (?:the|an?) (\w+) with the (\w+)")),
    ("look_at_obj_in_light", re.compile(r"look at (?:the |an? )?(\w+) under the (\w+)")),
    ("pick_clean_then_place_in_recep", re.compile(r"clean some (\w+) and put it (?:in|on) (\w+)")),
    ("pick_clean_then_place_in_recep", re.compile(r"put a clean (\w+) (?:in|on) (\w+)")),
    ("pick_heat_then_place_in_recep", re.compile(r"heat some (\w+) and put it (?:in|on) (\w+)")),
    ("pick_heat_then_place_in_recep", re.compile(r"put a hot (\w+) (?:in|on) (\w+)")),
    ("pick_cool_then_place_in_recep", re.compile(r"cool some (\w+) and put it (?:in|on) (\w+)")),
    ("pick_cool_then_place_in_recep", re.compile(r"put a (?:cool|cold) (\w+) (?:in|on) (\w+)")),
    ("pick_two_obj_and_place", re.compile(r"find two (\w+) and put them (?:in|on) (\w+)")),
    ("pick_two_obj_and_place", re.compile(r"put two (\w+) (?:in|on) (\w+)")),
    ("pick_and_place_simple", re.compile(r"put (?:some|an?) (\w+) (?:in|on) (\w+)")),
)
TASK_OPENING = "Your task is to:"
_BEFORE_TASK = f"{TASK_OPENING} "


@dataclass(frozen=True, slots=True)
class HouseTask:
    """The task as its sentence states it.

    Attributes:
        target: kind of the receptacle to put it in, or of the lamp to use.
    """

    kind: GoalKind
    item: str
    target: str


@dataclass(frozen=True, slots=True)
class Scene:
    """Facts in one observation; None for those that it does not mention.

    Attributes:
        contents: the objects seen in it; None if it is closed.
        taken: the object that was picked up, and its receptacle.
        put: the object that was put down, and its receptacle.
        treated: "clean", "heat" or "cool", and the object.
    """

    receptacle: str | None = None
    contents: tuple[str, ...] | None = None
    taken: tuple[str, str] | None = None
    put: tuple[str, str] | None = None
    treated: tuple[str, str] | None = None


@lru_cache(maxsize=1 << 14)  # an expert needs the same few hundred names again and again
def kind_of(name: str) -> str:
    """The kind in a name, such as "soapbar" in "soapbar 2"."""
    return name.rpartition(" ")[0]


def read_task(observation: str) -> HouseTask:
    """The task in the first observation."""
    _, _, sentence = observation.partition(_BEFORE_TASK)
    for kind, pattern in _TASKS:
        if match := pattern.match(sentence):
            return HouseTask(kind, match[1], match[2])
    raise EnvironmentFailureError(
        f"no ALFWorld task in {observation[-200:]!r}; give the expert the first observation,"
        f" which ends with '{_BEFORE_TASK}…'"
    )


def read_receptacles(observation: str) -> tuple[str, ...]:
    """The receptacles that the first observation lists, in order."""
    room, _, _ = observation.partition(_BEFORE_TASK)
    return tuple(_NAMED.findall(room))


def read_scene(observation: str) -> Scene:
    """Facts in the observation after an action."""
    if match := _OPEN.search(observation):
        return Scene(match[1] or match[2], contents=tuple(_NAMED.findall(match[3])))
    if match := _CLOSED.search(observation):
        return Scene(match[1])
    if match := _TAKEN.search(observation):
        return Scene(taken=(match[1], match[2]))
    if match := _PUT.search(observation):
        return Scene(put=(match[1], match[2]))
    if match := _TREATED.search(observation):
        return Scene(treated=(match[1], match[2]))
    return Scene()
