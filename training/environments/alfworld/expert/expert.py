"""Expert that plays ALFWorld from its texts alone, in words that a small model can learn.

It knows no more than an agent could: the observations, and how often each kind of object is in each
kind of receptacle (`statistics`). Its replies are short, use a closed vocabulary, and are a
deterministic function of the history. The thought before an action announces the action.

The words are chosen for a small model. A thought starts with the conclusion from the last
observation: "plate 2 is here" or "Not here". A name is more likely if the object is needed, and
more likely if it was just read; the name for which both hold becomes the most likely word, so the
model need not learn to compare. Then the thought repeats the need, always in the same words, so
that each step depends only on the last few lines: a small model forgets the first message.
"""

import math
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from random import Random

from qguide.training.environments.alfworld.expert.memory import HouseMemory
from qguide.training.environments.alfworld.game.game import TREATMENTS
from qguide.training.environments.alfworld.game.observation import kind_of
from qguide.training.environments.alfworld.game.statistics import Statistics, load_statistics
from qguide.training.trajectory import parse_action, react_reply


@dataclass(frozen=True, slots=True)
class ExpertReply:
    """The parts of one reply.

    Attributes:
        seen: conclusion from the last observation; empty at the start.
    """

    seen: str
    intent: str
    action: str


class AlfWorldExpert:
    """The expert of one episode; each episode needs a new one."""

    def __init__(self, *, forgetful: bool = False) -> None:
        """Prepare an episode; `reply` gets the first observation.

        Args:
            forgetful: forget everything that an agent which it follows has overlooked. An expert
                that remembers can show the agent the way back, but makes the oversight look cheap,
                which it is not for an agent that never goes back.
        """
        self._statistics = load_statistics()
        self._forgetful = forgetful
        self._memory: HouseMemory | None = None
        self._action = ""
        self._deliberate = True
        self._plans: dict[str, tuple[str, ...]] = {}

    def copy(self) -> "AlfWorldExpert":
        """An independent copy in the present state."""
        twin = copy(self)
        twin._memory = self._memory and self._memory.copy()
        return twin

    def reply(self, observation: str) -> str:
        """The next ReAct reply; the first observation states the task."""
        if self._memory is None:
            self._memory = HouseMemory(observation)
            decision = self._begin(self._memory)
        else:
            self._memory.read(self._action, observation, deliberate=self._deliberate)
            decision = self._decide(self._memory)
        return self._say(self._memory, decision, deliberate=True)

    def deviate(self, rng: Random, *, misreadings: float = 0.0) -> str:
        """A plausible mistake instead of the last reply; the next reply recovers from it.

        A cloned policy that has never seen a mistake cannot recover from one.
        """
        assert self._memory is not None, "call reply first: there is nothing to deviate from"
        misread = misreadings > 0 and rng.random() < misreadings
        kind = misreading if misread else mistake
        return self._say(self._memory, kind(self._memory, rng), deliberate=False)

    def follow(self, reply: str) -> None:
        """Take note of a reply that was given instead of the expert's last one.

        The next reply continues from there, so the expert can advise a policy in states that the
        policy reached.
        """
        action = parse_action(reply)
        self._deliberate = action == self._action
        astray = not self._deliberate and action.startswith("go to ")
        if self._forgetful and astray and self._memory is not None:
            self._overlook(self._memory)
        self._action = action

    def _overlook(self, memory: HouseMemory) -> None:
        """Forget the object that the agent neither took nor used before it went elsewhere."""
        verb, _, rest = self._action.partition(" ")
        if verb == "go" and memory.held is None:
            memory.overlook(rest.removeprefix("to "), memory.task.item)
        elif verb == "take":
            memory.overlook(memory.at, memory.task.item)
        elif verb == "use":
            memory.overlook(memory.at, memory.task.target)

    def _say(self, memory: HouseMemory, decision: ExpertReply, *, deliberate: bool) -> str:
        self._action, self._deliberate = decision.action, deliberate
        thoughts = (decision.seen, _need(memory), decision.intent)
        return react_reply(" ".join(thought for thought in thoughts if thought), decision.action)

    def _begin(self, memory: HouseMemory) -> ExpertReply:
        plan = self._plan(memory, memory.task.item)
        place = next_receptacle(plan, memory.receptacles, memory.contents) or ""
        return ExpertReply("", f"{_announce(plan)}First is {place}.", f"go to {place}")

    def _decide(self, memory: HouseMemory) -> ExpertReply:
        task, held = memory.task, memory.held
        if memory.unclear is not None:
            place = memory.unclear
            return ExpertReply(f"I am already at {place}.", "I examine it.", f"examine {place}")
        if memory.at is None:
            return self._begin(memory)
        if held is None:
            return self._find_item(memory, memory.at)
        if kind_of(held) != task.item:
            return _put(held, memory.at, memory, ExpertReply(f"I hold {held}.", "I put it back.", ""))
        if task.kind == "look_at_obj_in_light":
            return self._find_lamp(memory, memory.at, held)
        if task.kind in TREATMENTS and (TREATMENTS[task.kind].verb, held) not in memory.treated:
            return _treat(memory, held)
        return _deliver(memory, held)

    def _find_item(self, memory: HouseMemory, at: str) -> ExpertReply:
        kind = memory.task.item
        home = _target(memory) if memory.task.kind == "pick_two_obj_and_place" else None
        item = memory.seen_at(at, kind)
        if at == home and item:
            return self._search(memory, kind, "One is done.", home)
        if memory.is_shut(at, kind):
            return _open(at)
        if item:
            return ExpertReply(f"{item} is here.", "I take it.", f"take {item} from {at}")
        return self._search(memory, kind, "Not here.", home)

    def _find_lamp(self, memory: HouseMemory, at: str, held: str) -> ExpertReply:
        kind = memory.task.target
        if memory.is_shut(at, kind):
            return _open(at)
        if lamp := memory.seen_at(at, kind):
            return ExpertReply(f"{lamp} is here.", "I use it.", f"use {lamp}")
        if self._action.startswith("take "):
            return self._search(memory, kind, f"I hold {held}.", plan=self._plan(memory, kind))
        return self._search(memory, kind, "Not here.")

    def _search(
        self, memory: HouseMemory, kind: str, seen: str, home: str | None = None, plan: tuple[str, ...] = ()
    ) -> ExpertReply:
        """Go where an object of the kind was seen, except `home`; otherwise to the next place."""
        for place in memory.contents:
            item = memory.seen_at(place, kind)
            if item and place not in (home, memory.at):
                return ExpertReply(seen, f"{item} is at {place}.", f"go to {place}")
        kinds = self._plan(memory, kind)
        next_place = next_receptacle(kinds, memory.receptacles, memory.contents)
        if next_place is None:
            memory.forget_contents()
            next_place = next_receptacle(kinds, memory.receptacles, (memory.at or "",)) or ""
        return ExpertReply(seen, f"{_announce(plan)}Next is {next_place}.", f"go to {next_place}")

    def _plan(self, memory: HouseMemory, kind: str) -> tuple[str, ...]:
        if kind not in self._plans:
            plan = search_plan(kind, memory.receptacles, self._statistics)
            if memory.task.kind == "pick_and_place_simple":
                # An object in the target would have won the game before it started.
                plan = tuple(place for place in plan if place != memory.task.target)
            self._plans[kind] = plan
        return self._plans[kind]


def _need(memory: HouseMemory) -> str:
    """The task in this house's own names; the object to look for comes last."""
    task, held = memory.task, memory.held
    if task.kind == "look_at_obj_in_light":
        if held is not None and kind_of(held) == task.item:
            return f"{held} needs one {task.target}."
        return f"{task.target} needs one {task.item}."
    number = "two" if task.kind == "pick_two_obj_and_place" else "one"
    state = f" {TREATMENTS[task.kind].state}" if task.kind in TREATMENTS else ""
    return f"{_target(memory)} needs {number}{state} {task.item}."


def _treat(memory: HouseMemory, held: str) -> ExpertReply:
    verb, state, kind = TREATMENTS[memory.task.kind]
    place = _first(memory, kind)
    if memory.at == place:
        return ExpertReply(f"{place} is here.", f"I {verb} {held}.", f"{verb} {held} with {place}")
    return ExpertReply(f"I hold {held}.", f"It must be {state}. Next is {place}.", f"go to {place}")


def _deliver(memory: HouseMemory, held: str) -> ExpertReply:
    target = _target(memory)
    if memory.at == target:
        return _put(held, target, memory, ExpertReply(f"{target} is here.", f"I put {held}.", ""))
    treatment = TREATMENTS.get(memory.task.kind)
    seen = f"{held} is {treatment.state}." if treatment else f"I hold {held}."
    return ExpertReply(seen, f"It goes to {target}.", f"go to {target}")


def _target(memory: HouseMemory) -> str:
    """The target receptacle; for two objects, the one that already holds the first."""
    task = memory.task
    if task.kind == "pick_two_obj_and_place":
        for place in memory.all_of(task.target):
            if memory.seen_at(place, task.item):
                return place
    return _first(memory, task.target)


def _first(memory: HouseMemory, kind: str) -> str:
    """The receptacle of a kind with the lowest number at which no action has failed yet.

    Number 1 exists whenever the kind does, so a model can name it without reading. The first one
    listed has the highest number; a small model would learn to guess it, and keep guessing.
    """
    places = memory.all_of(kind)[::-1] or [f"{kind} 1"]
    return next((place for place in places if place not in memory.refused), places[0])


def _put(held: str, place: str, memory: HouseMemory, decision: ExpertReply) -> ExpertReply:
    if place in memory.closed:
        return _open(place)
    return replace(decision, action=f"put {held} in/on {place}")


def _open(place: str) -> ExpertReply:
    return ExpertReply(f"{place} is closed.", "I open it.", f"open {place}")


def _announce(plan: tuple[str, ...]) -> str:
    return f"I search {', '.join(plan)}. " if plan else ""


def mistake(memory: HouseMemory, rng: Random) -> ExpertReply:
    """A random decision about objects and places of the house; it may happen to be right."""
    choices = [_go_astray(memory, rng)]
    if memory.at is not None:
        choices += _misread(memory, memory.at, rng)
        if memory.held is None:
            choices += _take(memory, memory.at)
        else:
            choices += _misuse(memory, memory.at, memory.held, rng)
    return rng.choice(choices)


def misreading(memory: HouseMemory, rng: Random) -> ExpertReply:
    """Claim an object that is not here, or overlook one that is: small policies' main mistake."""
    if memory.at is None or memory.held is not None or memory.seen_at(memory.at, memory.task.item):
        return _go_astray(memory, rng)
    return _misread(memory, memory.at, rng)[0]


def _go_astray(memory: HouseMemory, rng: Random) -> ExpertReply:
    """Go to any place, such as one seen before, the target too early, or the present one."""
    targets = memory.all_of(memory.task.target)
    place = rng.choice([*targets[-1:], *memory.receptacles]) if memory.receptacles else ""
    return ExpertReply("Not here.", f"Next is {place}.", f"go to {place}")


def _take(memory: HouseMemory, at: str) -> list[ExpertReply]:
    items = [i for i in memory.contents.get(at, ()) if kind_of(i) != memory.task.item]
    return [ExpertReply(f"{item} is here.", "I take it.", f"take {item} from {at}") for item in items[:1]]


def _misuse(memory: HouseMemory, at: str, held: str, rng: Random) -> list[ExpertReply]:
    verb, _, appliance = rng.choice([*TREATMENTS.values()])
    place = next(iter(memory.all_of(appliance)), at)
    return [
        ExpertReply(f"{at} is here.", f"I put {held}.", f"put {held} in/on {at}"),
        ExpertReply(f"{place} is here.", f"I {verb} {held}.", f"{verb} {held} with {place}"),
    ]


def _misread(memory: HouseMemory, at: str, rng: Random) -> list[ExpertReply]:
    item = f"{memory.task.item} {rng.randint(1, 4)}"
    return [
        ExpertReply(f"{item} is here.", "I take it.", f"take {item} from {at}"),
        ExpertReply(f"{at} is closed.", "I open it.", f"open {at}"),
    ]


OPENING_COST = 2.0
"""Number of actions to look into a closed receptacle; an open one needs one action."""

LEAST_RATE = 0.01
"""Kinds that hold the wanted object less often come last, in the room's order."""

GRADE_BASE = 3.0
"""Factor within which rates count as equal; 500 train games take 7.69 steps with and without it."""


def search_plan(item: str, receptacles: Iterable[str], statistics: Statistics) -> tuple[str, ...]:
    """Receptacle kinds that may hold `item`, starting with the most likely per action.

    A small model has to memorise the order, so it is simple: it depends only on the item kind (a
    room leaves kinds out, but does not change their order), and kinds with about equal rates have
    the same order for all items.
    """
    kinds = {kind_of(name) for name in receptacles}
    found = [kind for kind in kinds if statistics.find_rate(item, kind) >= LEAST_RATE]

    def rank(kind: str) -> tuple[int, float, str]:
        cost = OPENING_COST if statistics.is_openable(kind) else 1.0
        grade = round(math.log(statistics.find_rate(item, kind) / cost, GRADE_BASE))
        return -grade, -statistics.fullness(kind), kind

    return tuple(sorted(found, key=rank))


def next_receptacle(plan: Iterable[str], receptacles: Iterable[str], done: Iterable[str]) -> str | None:
    """The first receptacle of the plan that is not done, in the room's order within each kind.

    Receptacles that are not in the plan come last; None if all are done.
    """
    passed = set(done)
    left = [name for name in receptacles if name not in passed]
    for kind in plan:
        for name in left:
            if kind_of(name) == kind:
                return name
    return next(iter(left), None)
