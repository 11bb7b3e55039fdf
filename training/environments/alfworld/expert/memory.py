"""An agent's knowledge of a house, from the texts that it has read so far."""

from copy import copy

from qguide.training.environments.alfworld.game.observation import (
    NOTHING_HAPPENS,
    HouseTask,
    kind_of,
    read_receptacles,
    read_scene,
    read_task,
)

_UNDONE_BY = {"heat": "cool", "cool": "heat"}


class HouseMemory:
    """Facts about one episode, updated by `read`.

    Attributes:
        receptacles: all receptacles, in the order of the first observation.
        refused: receptacles at which an action failed that should have worked.
        unclear: a receptacle at the agent's location that has not been described yet.
        treated: (verb, object) of each object that was cleaned, heated or cooled, and still is.
    """

    def __init__(self, observation: str) -> None:
        self.task: HouseTask = read_task(observation)
        self.receptacles = read_receptacles(observation)
        self.contents: dict[str, tuple[str, ...]] = {}
        self.closed: set[str] = set()
        self.refused: set[str] = set()
        self.at: str | None = None
        self.unclear: str | None = None
        self.held: str | None = None
        self.treated: set[tuple[str, str]] = set()

    def copy(self) -> "HouseMemory":
        """An independent copy in the present state."""
        twin = copy(self)
        twin.contents = self.contents.copy()
        twin.closed, twin.refused = self.closed.copy(), self.refused.copy()
        twin.treated = self.treated.copy()
        return twin

    def read(self, action: str, observation: str, *, deliberate: bool) -> None:
        """Learn from the observation after an action.

        A `deliberate` action was expected to work, so its failure corrects the memory.
        """
        if observation.strip() == NOTHING_HAPPENS:
            self._read_failure(action, deliberate=deliberate)
            return
        scene = read_scene(observation)
        if scene.receptacle is not None:
            self._see(scene.receptacle, scene.contents)
        elif scene.taken is not None:
            self.held, source = scene.taken
            self._remove(self.held, source)
        elif scene.put is not None:
            item, target = scene.put
            self.held = None
            self.contents[target] = (*self.contents.get(target, ()), item)
        elif scene.treated is not None:
            verb, item = scene.treated
            self.treated.discard((_UNDONE_BY.get(verb, ""), item))
            self.treated.add(scene.treated)
        elif action.startswith("close "):
            self.closed.add(action.removeprefix("close "))

    def forget_contents(self) -> None:
        """Forget all contents, so that the search starts again."""
        self.contents.clear()
        self.refused.clear()

    def overlook(self, receptacle: str | None, kind: str) -> None:
        """Forget the objects of a kind that were seen in a receptacle."""
        if receptacle in self.contents:
            seen = self.contents[receptacle]
            self.contents[receptacle] = tuple(item for item in seen if kind_of(item) != kind)

    def is_shut(self, receptacle: str, kind: str) -> bool:
        """True if a receptacle must be opened before a kind of object is looked for or taken."""
        unseen = receptacle not in self.contents
        return receptacle in self.closed and (unseen or bool(self.seen_at(receptacle, kind)))

    def all_of(self, kind: str) -> list[str]:
        """The receptacles of a kind, in the room's order."""
        return [name for name in self.receptacles if kind_of(name) == kind]

    def seen_at(self, receptacle: str | None, kind: str) -> str | None:
        """The last object of a kind in the list of a receptacle's contents, as last seen."""
        items = self.contents.get(receptacle, ()) if receptacle else ()
        return next((item for item in reversed(items) if kind_of(item) == kind), None)

    def _see(self, receptacle: str, contents: tuple[str, ...] | None) -> None:
        self.at, self.unclear = receptacle, None
        if contents is None:
            self.closed.add(receptacle)
        else:
            self.closed.discard(receptacle)
            self.contents[receptacle] = contents

    def _remove(self, item: str, receptacle: str) -> None:
        items = self.contents.get(receptacle, ())
        self.contents[receptacle] = tuple(other for other in items if other != item)

    def _read_failure(self, action: str, *, deliberate: bool) -> None:
        verb, _, rest = action.partition(" ")
        if verb == "go":
            place = rest.removeprefix("to ")
            # `go to` fails at the agent's own location, which several receptacles may share.
            if place in self.receptacles and place != self.at:
                self.unclear = place
        elif not deliberate:
            return
        elif verb == "examine":
            self.unclear = None
            self.contents[rest] = ()
        elif verb == "open":
            self.closed.discard(rest)
            self.contents[rest] = ()
        elif verb == "take":
            self._remove(*rest.split(" from ", 1))
        elif verb == "use" and self.at is not None:
            self._remove(rest, self.at)
        elif self.at is not None:
            self.refused.add(self.at)
