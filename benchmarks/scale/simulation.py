"""Discrete-event simulation of episodes on replicas that each do one step's work at a time."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Final

from benchmarks.scale.config import Scenario, StepCosts
from benchmarks.scale.ring import HashRing

ASSUMPTIONS: Final = (
    "A replica works on one step at a time, in the order of their arrival; a step takes what was "
    "measured, and a token of the history takes the same time wherever it stands.",
    "The environments' machines are as many as it takes: a step of an environment never waits.",
    "As many episodes are open as episodes_per_replica says for all replicas together; the next "
    "one begins when one ends. The network, the router and the job take no time.",
    "A replica's cache holds the histories of its last sessions up to cache_tokens, whole ones.",
    "A router notices a dead replica at once and sends what it had not answered again, each to the "
    "next replica on the ring, which reads the whole history. The dead one is not replaced.",
)


@dataclass(frozen=True, slots=True)
class Scene:
    """One simulation.

    Attributes:
        open_episodes: number of episodes at the same time.
        cache_tokens: capacity of each replica's cache.
        dies_at_s: when the replica with the most episodes dies; None: never.
    """

    scenario: Scenario
    tasks: int
    replicas: int
    open_episodes: int
    cache_tokens: int
    seed: int
    dies_at_s: float | None = None


@dataclass(slots=True)
class Outcome:
    """Figures of one simulation; see `ScaleRow`.

    Attributes:
        busy_s: of each replica.
        history_tokens: of all steps; `read_tokens` of them were in no cache.
        later_steps: steps after an episode's first; `returned` of them came to the same replica.
    """

    busy_s: list[float]
    wall_s: float = 0.0
    history_tokens: int = 0
    read_tokens: int = 0
    later_steps: int = 0
    returned: int = 0
    resent: int = 0
    environment_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Episode:
    """An episode; `version` counts its requests, so that answers of a dead replica are known."""

    session: str
    steps: int
    step: int = 0
    replica: int = -1
    version: int = 0
    service_s: float = 0.0


@dataclass(slots=True)
class _Replica:
    """A replica: its queue's end, and the history tokens that it has of each session."""

    capacity: int
    free_at_s: float = 0.0
    open: int = 0
    cached: OrderedDict[str, int] = field(default_factory=OrderedDict)
    cached_tokens: int = 0

    def read(self, session: str, tokens: int) -> int:
        """Read a history of so many tokens; the number that was not cached."""
        known = self.cached.pop(session, 0)
        self.cached_tokens -= known
        if tokens <= self.capacity:
            self.cached[session] = tokens
            self.cached_tokens += tokens
        while self.cached_tokens > self.capacity:
            _, dropped = self.cached.popitem(last=False)
            self.cached_tokens -= dropped
        return tokens - known


class Simulation:
    """One scene, played once."""

    def __init__(self, scene: Scene, costs: StepCosts) -> None:
        """Draw the episodes' lengths; the same seed gives all scenarios the same episodes."""
        rng = Random(f"{scene.seed} {scene.tasks}")
        self._scene, self._costs = scene, costs
        self._waiting = [
            _Episode(f"task-{scene.seed}-{number}", rng.choice(costs.steps)) for number in reversed(range(scene.tasks))
        ]
        capacity = 0 if scene.scenario == "no cache" else scene.cache_tokens
        self._replicas = [_Replica(capacity) for _ in range(scene.replicas)]
        self._ring = HashRing([f"replica-{number + 1}:8000" for number in range(scene.replicas)])
        self._dead: set[int] = set()
        self._asking: set[_Episode] = set()
        self._events: list[tuple[float, int, _Episode | None, int]] = []
        self._number = 0
        self._turn = 0
        self._outcome = Outcome([0.0] * scene.replicas)
        self._route: Callable[[_Episode], int] = {"fewest episodes": self._fewest, "any replica": self._in_turn}.get(
            scene.scenario, self._hashed
        )

    def run(self) -> Outcome:
        """Play all episodes."""
        if self._scene.dies_at_s is not None:
            self._at(self._scene.dies_at_s, None)
        for _ in range(min(self._scene.open_episodes, self._scene.tasks)):
            self._ask(self._waiting.pop(), 0.0)
        while self._events:
            now_s, _, episode, version = heappop(self._events)
            if episode is None:
                self._die(now_s)
            elif version != episode.version:
                continue  # an answer of the dead replica, which was asked for elsewhere
            elif episode in self._asking:
                self._answer(episode, now_s)
            else:
                self._ask(episode, now_s)
        return self._outcome

    def _at(self, time_s: float, episode: _Episode | None) -> None:
        self._number += 1
        heappush(self._events, (time_s, self._number, episode, episode.version if episode else 0))

    def _ask(self, episode: _Episode, now_s: float) -> None:
        """Send an episode's next request to a replica, which queues it."""
        costs, outcome = self._costs, self._outcome
        before, episode.replica = episode.replica, self._route(episode)
        if before != episode.replica:
            if before >= 0:
                self._replicas[before].open -= 1
            self._replicas[episode.replica].open += 1
        if episode.step:
            outcome.later_steps += 1
            outcome.returned += before == episode.replica
        replica = self._replicas[episode.replica]
        history = costs.first_tokens + episode.step * costs.step_tokens
        read = replica.read(episode.session, history)
        outcome.history_tokens += history
        outcome.read_tokens += read
        service_s = costs.draw_s + costs.score_s + read * (costs.draw_read_s + costs.score_read_s)
        episode.service_s = service_s
        replica.free_at_s = max(replica.free_at_s, now_s) + service_s
        episode.version += 1
        self._asking.add(episode)
        self._at(replica.free_at_s, episode)

    def _answer(self, episode: _Episode, now_s: float) -> None:
        """Go on with an episode whose request was answered, or begin the next one."""
        self._asking.remove(episode)
        self._outcome.busy_s[episode.replica] += episode.service_s
        self._outcome.environment_s += self._costs.environment_s
        after_s = now_s + self._costs.environment_s
        self._outcome.wall_s = max(self._outcome.wall_s, after_s)
        episode.step += 1
        if episode.step < episode.steps:
            self._at(after_s, episode)
            return
        self._replicas[episode.replica].open -= 1
        if self._waiting:
            self._at(after_s, self._waiting.pop())

    def _die(self, now_s: float) -> None:
        """Let the fullest replica die, and send again what it has not answered."""
        numbers = range(len(self._replicas))
        dying = max(numbers, key=lambda number: self._replicas[number].open)
        self._dead.add(dying)
        lost = [episode for episode in self._asking if episode.replica == dying]
        lost.sort(key=lambda episode: episode.session)
        self._outcome.resent += len(lost)
        for episode in lost:
            self._ask(episode, now_s)

    def _hashed(self, episode: _Episode) -> int:
        return self._ring.server_of(episode.session, dead=self._dead)

    def _fewest(self, episode: _Episode) -> int:
        if episode.replica >= 0:
            return episode.replica
        return min(range(len(self._replicas)), key=lambda number: self._replicas[number].open)

    def _in_turn(self, _episode: _Episode) -> int:
        self._turn += 1
        return self._turn % len(self._replicas)
