"""Incidents of a cloud, handled by tool calls whose answers are nested JSON, behind TRL's interface.

    qguide environment check benchmarks.strangers.outsiders.incidents:Incidents \
        --harmless 'get_signals({"incident": "none"})'

The component and its symptom together decide the runbook, and the region decides which team is
paged, unless the severity is 3. Two monitors report, each with fields and words of its own.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from random import Random
from typing import Any

from benchmarks.strangers.mock_policy import MockPolicy, Option, Weights, beliefs, named, tool
from benchmarks.strangers.worlds import in_turns, shared_out, world_and_number
from qguide.qnet.types import History
from qguide.training.trajectory import arguments_of

COMPONENTS = {
    "database": ("database", "db-primary"),
    "queue": ("queue", "mq-broker"),
    "gateway": ("gateway", "edge-lb"),
    "store": ("store", "blob-s3"),
}
REGIONS = {region: (region, f"{region[0]}-2b") for region in ("north", "south", "coast", "isles")}
SYMPTOMS = {
    "latency": ("latency_p95", "requests take seconds"),
    "errors": ("error_ratio", "many calls fail"),
    "backlog": ("backlog_depth", "work piles up"),
}
RUNBOOKS = ("restart", "rollback", "failover", "scale_out")
TEAMS = ("storage", "platform", "traffic", "identity")


@dataclass(frozen=True)
class Cloud:
    """Facts of one cloud.

    Attributes:
        runbook: for each pair "component, symptom".
        team: for each region.
        incidents: component with symptom, region, and number of the monitor.
    """

    runbook: dict[str, str]
    team: dict[str, str]
    incidents: tuple[tuple[tuple[str, str], int], ...]


@lru_cache(maxsize=64)
def cloud(world: int) -> Cloud:
    """The cloud of a world."""
    chance = Random(f"cloud {world}")
    pairs = [f"{component}, {symptom}" for component in COMPONENTS for symptom in SYMPTOMS]
    facts = shared_out(pairs, RUNBOOKS, chance), shared_out(tuple(REGIONS), TEAMS, chance)
    return Cloud(*facts, tuple(in_turns(list(product(pairs, REGIONS)), 2, chance)))


class Incidents:
    """One incident; the public methods are the tools."""

    system = (
        "You are on call. Get the incident and its signals, run the one runbook that helps, page the team "
        "in charge unless the severity is 3, and resolve the incident. Runbooks and pages cannot be undone."
    )

    def reset(self, *, seed: int = 0) -> str:
        """Raise the incident of that number."""
        world, number = world_and_number(seed)
        facts, chance = cloud(world), Random(f"incident {seed}")
        (pair, region), monitor = facts.incidents[number % len(facts.incidents)]
        component, symptom = pair.split(", ")
        self._says = COMPONENTS[component][monitor], REGIONS[region][monitor], SYMPTOMS[symptom][monitor]
        self._second, self._severity, self._count = monitor == 1, chance.choice((1, 2, 2, 3)), chance.randrange(20, 60)
        self._runbook, self._team = facts.runbook[pair], facts.team[region] if self._severity < 3 else ""
        self._id, self._seen, self._ran, self._paged, self.done = str(number), set[str](), "", "", False
        return json.dumps({"page": {"incident": self._id, "state": "open"}})

    def get_incident(self, incident: str) -> str:
        """Tell where an incident is and how severe.

        Args:
            incident: its number.
        """
        component, region, _ = self._says
        labels = [f"zone:{region}", f"unit:{component}", f"prio:P{self._severity}"]
        source = {"component": {"kind": component, "replicas": self._count % 7}, "location": {"region": region}}
        first = {"incident": {"id": incident, "severity": self._severity, "source": source}}
        return self._look(incident, first, {"event": {"labels": labels, "since": f"04:{self._count}"}})

    def get_signals(self, incident: str) -> str:
        """Tell what was measured at an incident.

        Args:
            incident: its number.
        """
        said = self._says[-1]
        firing = {"metric": said, "status": "firing", "value": self._count}
        first = {"signals": {"window_s": 300, "series": [{"metric": "cpu_load", "status": "ok"}, firing]}}
        return self._look(incident, first, {"annotations": {"summary": said, "samples": self._count}, "cpu": "ok"})

    def run_runbook(self, name: str) -> str:
        """Run a runbook, which is done once.

        Args:
            name: restart, rollback, failover or scale_out.
        """
        if name not in RUNBOOKS:
            raise ValueError(f"{name!r} is no runbook: {', '.join(RUNBOOKS)}")
        self._ran = self._ran or (name if len(self._seen) == 2 else "blind")
        return json.dumps({"job": {"runbook": name, "result": {"exit": 0}}})

    def page_team(self, team: str) -> str:
        """Page a team, which is done once.

        Args:
            team: storage, platform, traffic or identity.
        """
        if team not in TEAMS:
            raise ValueError(f"{team!r} is no team: {', '.join(TEAMS)}")
        self._paged = self._paged or team
        return json.dumps({"paged": {"team": team, "answer": {"acknowledged": True}}})

    def resolve(self) -> str:
        """Resolve the incident, which ends the work."""
        self.done = True
        return json.dumps({"page": {"incident": self._id, "state": "resolved"}})

    def get_reward(self) -> float:
        """Worth of a resolved incident: .6 for the runbook, run on what was read, and .4 for the page."""
        worth = 0.6 * (self._ran == self._runbook) + 0.4 * (self._ran != "" and self._paged == self._team)
        return worth if self.done else 0.0

    def _look(self, incident: str, first: dict[str, Any], second: dict[str, Any]) -> str:
        """Answer of the monitor in charge."""
        if incident != self._id:
            return json.dumps({"error": {"code": 404, "incident": incident}})
        self._seen.update(first)
        return json.dumps(second if self._second else first)


def policy(world: int = 0) -> MockPolicy:
    """The mock that is on call in a cloud."""
    return MockPolicy("incidents-mock", _Beliefs(world).options)


class _Beliefs:
    """Shares by which the mock guesses what holds."""

    def __init__(self, world: int) -> None:
        facts, chance = cloud(world), Random(f"cloud mock {world}")
        self._runbook = beliefs(facts.runbook, RUNBOOKS, chance)
        self._team = beliefs(facts.team, TEAMS, chance)

    def options(self, history: History) -> list[Option]:
        """The replies in a state."""
        start, *turns = [message for message in history if message.role != "system"]
        number: dict[str, Any] = {"incident": json.loads(start.content)["page"]["incident"]}
        told = "\n".join(message.content for message in turns)
        calls = [call for message in turns for call in message.tool_calls]
        component, region, symptom = (named(words, told) for words in (COMPONENTS, REGIONS, SYMPTOMS))
        ran, paged = '"exit": 0' in told, '"paged"' in told
        minor = "prio:P3" in told or '"severity": 3' in told
        ready = ran and (paged or minor)
        found = [
            tool("run_runbook", {"name": "reboot"}, 0.03, "malformed"),
            tool("resolve", {}, 0.8 if ready else 0.03, "" if ready else "stop"),
            tool("get_incident", number, 0.03 if region else 0.5, "repeat" if region else ""),
            tool("get_signals", number, 0.03 if symptom else 0.4, "repeat" if symptom else ""),
        ]
        if calls:
            found.append(tool(calls[-1].name, arguments_of(calls[-1]) or {}, 0.03, "repeat"))
        if not ran:
            found += self._runs(self._runbook.get(f"{component}, {symptom}"))
        if not paged:
            found += self._pages(self._team.get(region), minor=minor)
        return found

    def _runs(self, shares: Weights | None) -> Iterator[Option]:
        for name in RUNBOOKS:
            weight = 0.5 * shares[name] if shares else 0.03 / len(RUNBOOKS)
            yield tool("run_runbook", {"name": name}, weight, "guess" if shares else "skip")

    def _pages(self, shares: Weights | None, *, minor: bool) -> Iterator[Option]:
        for team in TEAMS:
            weight = (0.15 if minor else 0.4) * shares[team] if shares else 0.03 / len(TEAMS)
            yield tool("page_team", {"team": team}, weight, "rule" if minor else "guess" if shares else "skip")
