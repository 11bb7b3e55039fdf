"""An expert that plays ALFWorld from what it reads alone, in words a small model can learn.

It knows no more than an agent does: the observations, and how often which objects lie in
which receptacles (`statistics`). Its replies are a deterministic function of the history,
short, and of a closed vocabulary; every action is named in the thought before it.
"""

from training.environments.alfworld.memory import HouseMemory
from training.environments.alfworld.observation import kind_of
from training.environments.alfworld.search import next_receptacle, search_plan
from training.environments.alfworld.statistics import Statistics, load_statistics
from training.environments.base import parse_action, react_reply

_TREATMENTS: dict[str, tuple[str, str, str]] = {
    "pick_clean_then_place_in_recep": ("clean", "clean", "sinkbasin"),
    "pick_heat_then_place_in_recep": ("heat", "hot", "microwave"),
    "pick_cool_then_place_in_recep": ("cool", "cool", "fridge"),
}
"""Goal kind -> verb, the state it brings, the appliance."""

_Decision = tuple[str, str]
"""A thought and an action."""


class Expert:
    """Plays one episode; a new one is needed for the next."""

    def __init__(self, statistics: Statistics | None = None) -> None:
        """Know the frequencies; None takes those that ship with QGuide."""
        self._statistics = statistics or load_statistics()
        self._memory: HouseMemory | None = None
        self._action = ""
        self._deliberate = True

    def reply(self, observation: str) -> str:
        """The next ReAct reply; the first observation carries the task.

        Raises:
            EnvironmentFailureError: the first observation has no task of a known form.
        """
        if self._memory is None:
            self._memory = HouseMemory(observation)
            decision = self._begin(self._memory)
        else:
            self._memory.read(self._action, observation, deliberate=self._deliberate)
            decision = self._decide(self._memory)
        self._action, self._deliberate = decision[1], True
        return react_reply(*decision)

    def follow(self, reply: str) -> None:
        """Hear that another reply was given than the last one of `self.reply`.

        The next reply then goes on from there: the expert can take over from any policy
        at any step, which is how its advice on a policy's own states is collected.
        """
        action = parse_action(reply)
        self._deliberate = action == self._action
        self._action = action

    def _begin(self, memory: HouseMemory) -> _Decision:
        task = memory.task
        number = "two" if task.kind == "pick_two_obj_and_place" else "one"
        state = f" {_TREATMENTS[task.kind][1]}" if task.kind in _TREATMENTS else ""
        need = f"I need {number}{state} {task.item} for the {task.target}."
        plan = self._plan(memory, task.item)
        place = next_receptacle(plan, memory.receptacles, memory.contents) or ""
        return f"{need} {_announce(plan)}First is {place}.", f"go to {place}"

    def _decide(self, memory: HouseMemory) -> _Decision:
        task, held = memory.task, memory.held
        if memory.unclear is not None:
            place = memory.unclear
            return f"I am already at {place}. I examine it.", f"examine {place}"
        if held is None:
            return self._find_item(memory)
        if kind_of(held) != task.item:
            return self._put_back(memory, held)
        if task.kind == "look_at_obj_in_light":
            return self._light(memory, held)
        if task.kind in _TREATMENTS and held not in memory.treated:
            return self._treat(memory, held)
        return self._deliver(memory, held)

    def _find_item(self, memory: HouseMemory) -> _Decision:
        kind, at = memory.task.item, memory.at
        if at is not None and at in memory.closed and at not in memory.contents:
            return f"{at} is closed. I open it.", f"open {at}"
        target = self._target(memory) if memory.task.kind == "pick_two_obj_and_place" else None
        if at != target and (item := memory.seen_at(at, kind)):
            if at in memory.closed:
                return f"{at} is closed. I open it.", f"open {at}"
            return f"{item} is here. I take it.", f"take {item} from {at}"
        done = target is not None and at == target and memory.seen_at(at, kind)
        news = f"One {kind} is done." if done else f"No {kind} at {at}."
        if place := self._known(memory, kind, target):
            return f"{news} {place[0]} is at {place[1]}.", f"go to {place[1]}"
        return self._search(memory, kind, news)

    def _known(self, memory: HouseMemory, kind: str, without: str | None) -> tuple[str, str] | None:
        for receptacle in memory.contents:
            item = memory.seen_at(receptacle, kind)
            if item and receptacle not in (without, memory.at):
                return item, receptacle
        return None

    def _search(self, memory: HouseMemory, kind: str, news: str) -> _Decision:
        plan = self._plan(memory, kind)
        place = next_receptacle(plan, memory.receptacles, memory.contents)
        if place is None:
            memory.forget_contents()
            here = (memory.at,) if memory.at else ()
            place = next_receptacle(plan, memory.receptacles, here) or ""
        return f"{news} Next is {place}.", f"go to {place}"

    def _light(self, memory: HouseMemory, held: str) -> _Decision:
        kind, at = memory.task.target, memory.at
        if at is not None and at in memory.closed and at not in memory.contents:
            return f"{at} is closed. I open it.", f"open {at}"
        if lamp := memory.seen_at(at, kind):
            return f"{lamp} is here. I use it.", f"use {lamp}"
        just_taken = self._action.startswith("take ")
        news = f"I hold {held}." if just_taken else f"No {kind} at {at}."
        if place := self._known(memory, kind, None):
            return f"{news} {place[0]} is at {place[1]}.", f"go to {place[1]}"
        if just_taken:
            plan = self._plan(memory, kind)
            news = f"{news} I need one {kind}. {_announce(plan)}".rstrip()
        return self._search(memory, kind, news)

    def _treat(self, memory: HouseMemory, held: str) -> _Decision:
        verb, state, kind = _TREATMENTS[memory.task.kind]
        place = self._first_of(memory, kind)
        if memory.at == place:
            return f"{place} is here. I {verb} {held}.", f"{verb} {held} with {place}"
        return f"I hold {held}. It must be {state}. Next is {place}.", f"go to {place}"

    def _deliver(self, memory: HouseMemory, held: str) -> _Decision:
        target = self._target(memory)
        if memory.at != target:
            treatment = _TREATMENTS.get(memory.task.kind)
            news = f"{held} is {treatment[1]}." if treatment else f"I hold {held}."
            return f"{news} It goes to {target}.", f"go to {target}"
        if target in memory.closed:
            return f"{target} is closed. I open it.", f"open {target}"
        return f"{target} is here. I put {held}.", f"put {held} in/on {target}"

    def _put_back(self, memory: HouseMemory, held: str) -> _Decision:
        at = memory.at or memory.receptacles[0]
        if at in memory.closed:
            return f"{at} is closed. I open it.", f"open {at}"
        return f"I do not need {held}. I put it back.", f"put {held} in/on {at}"

    def _target(self, memory: HouseMemory) -> str:
        """Where to deliver: where one already is, else the first listed."""
        task = memory.task
        places = self._all_of(memory, task.target)
        if task.kind == "pick_two_obj_and_place":
            for place in places:
                if memory.seen_at(place, task.item):
                    return place
        return next((place for place in places if place not in memory.refused), places[0])

    def _first_of(self, memory: HouseMemory, kind: str) -> str:
        places = self._all_of(memory, kind)
        return next((place for place in places if place not in memory.refused), places[0])

    def _all_of(self, memory: HouseMemory, kind: str) -> list[str]:
        return [name for name in memory.receptacles if kind_of(name) == kind] or [f"{kind} 1"]

    def _plan(self, memory: HouseMemory, kind: str) -> tuple[str, ...]:
        plan = search_plan(kind, memory.receptacles, self._statistics)
        if memory.task.kind == "pick_and_place_simple":
            # What already lay in a target would have won the game before it began.
            return tuple(place for place in plan if place != memory.task.target)
        return plan


def _announce(plan: tuple[str, ...]) -> str:
    return f"I search {', '.join(plan)}. " if plan else ""
