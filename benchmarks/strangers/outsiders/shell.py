"""Hosts that are repaired in a shell, whose output is logs and tables; replies have a fenced command.

    qguide environment check benchmarks.strangers.outsiders.shell:Shell --set reply=text \
        --harmless '```sh uptime```'

The program that logs an error decides which service is restarted, and the error which setting is
changed. It is lowered where more memory is used than a limit of the site, and raised elsewhere.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from random import Random
from typing import Any

from benchmarks.strangers.mock_policy import Mistake, MockPolicy, Option, beliefs, named
from benchmarks.strangers.worlds import in_turns, shared_out, world_and_number
from qguide.qnet.types import History, Message

PROGRAMS = ("authd", "billing", "crawler", "indexer", "mailer", "reports", "thumbs", "webapp")
SERVICES = ("postgres", "redis", "rabbit", "haproxy", "vault")
ERRORS = {
    "files": ("too many open files", "accept failed with EMFILE"),
    "pool": ("connection pool exhausted", "gave up waiting for a free connection"),
    "reset": ("connection reset by peer", "remote end hung up"),
    "heap": ("cannot allocate 64 MB", "allocation failed in the heap"),
    "lock": ("deadlock detected", "two transactions wait for each other"),
    "stale": ("checksum of page differs", "read a page of an old version"),
}
SETTINGS = ("workers", "buffer_mb", "timeout_s", "batch_size")
WAYS = ("raise", "lower")
LIMITS = (3000, 4000, 5000)
QUIET = ("healthcheck ok", "rotated 3 files", "accepted client", "saved snapshot", "config unchanged")
COMPLAINTS = ("the shop loads slowly", "customers see an error page")
MOST_ACTIONS = 8
SYSTEM = (
    "You repair hosts in a shell. Think, then give one command in a fenced block of sh. Commands are "
    "`journalctl -n 6`, `free -m`, `systemctl list-units`, `uptime`, `conf SETTING raise`, `conf SETTING "
    "lower`, `systemctl restart SERVICE` and `exit`. Settings are workers, buffer_mb, timeout_s and "
    "batch_size. Change one setting, then restart one service: never restart before the change. Both "
    "are done once, and `exit` closes the ticket."
)
_FENCED = re.compile(r"```sh\s+([^`]*?)\s*```\s*$")


@dataclass(frozen=True)
class Site:
    """Facts of one site.

    Attributes:
        service: to restart for each program.
        setting: to change for each error.
        limit: of the memory used, in MB.
        tickets: program, error and wording, in the order of their numbers.
    """

    service: dict[str, str]
    setting: dict[str, str]
    limit: int
    tickets: tuple[tuple[tuple[str, str], int], ...]


@lru_cache(maxsize=64)
def site(world: int) -> Site:
    """The site of a world."""
    chance = Random(f"site {world}")
    facts = shared_out(PROGRAMS, SERVICES, chance), shared_out(tuple(ERRORS), SETTINGS, chance), chance.choice(LIMITS)
    return Site(*facts, tuple(in_turns(list(product(PROGRAMS, ERRORS)), 2, chance)))


class Shell:
    """One ticket; see Gymnasium's `Env`."""

    system = SYSTEM

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Open the ticket of that number."""
        world, number = world_and_number(seed or 0)
        facts, chance = site(world), Random(f"ticket {seed}")
        (program, error), wording = facts.tickets[number % len(facts.tickets)]
        self.used, self.log = chance.randrange(1500, 6500, 10), _log(program, ERRORS[error][wording], chance)
        self.service, self.setting = facts.service[program], facts.setting[error]
        self.way = WAYS[self.used > facts.limit]
        self.changed, self.restarted, self.taken = "", "", 0
        return f"Ticket {number}: {COMPLAINTS[number % 2]}.\n$", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Run a command; the reward comes with `exit`."""
        self.taken += 1
        said = _FENCED.search(action)
        command = said[1] if said else ""
        answer, over = self._run(command.split()), command == "exit"
        cut = not over and self.taken == MOST_ACTIONS
        refused = f"sh: {command}: command not found" if said else "sh: no command was given"
        return f"{answer or refused}\n$", self._worth() if over else 0.0, over, cut, {"valid": bool(answer)}

    def _run(self, words: list[str]) -> str:
        """Output of a command; "" if there is none of that name."""
        match words:
            case ["journalctl", "-n", "6"]:
                return self.log
            case ["free", "-m"]:
                sizes = (("Mem:", 8000, self.used), ("Swap:", 2000, self.used % 900))
                rows = [f"{name:6}{total:>8}{used:>8}{total - used:>8}" for name, total, used in sizes]
                return "\n".join(("         total    used    free", *rows))
            case ["systemctl", "list-units"]:
                return "\n".join(f"{service}.service  loaded  active  running" for service in SERVICES)
            case ["uptime"]:
                return "up 12 days, load average: 0.42"
            case ["conf", setting, way] if setting in SETTINGS and way in WAYS:
                self.changed = self.changed or f"{setting} {way}"
                return f"{self.changed}: written"
            case ["systemctl", "restart", service] if service in SERVICES:
                self.restarted = self.restarted or (service if self.changed else f"{service} early")
                return f"{service}.service restarted"
            case ["exit"]:
                return "logout"
        return ""

    def _worth(self) -> float:
        """Worth of the repair: .4 for the service, .3 for the setting, and .3 for its way besides."""
        service, _, early = self.restarted.partition(" ")
        restarted = 0.4 * (service == self.service) * (0.5 if early else 1.0)
        setting, _, way = self.changed.partition(" ")
        if setting != self.setting:
            return restarted
        return restarted + 0.3 + 0.3 * (way == self.way)


def _log(program: str, said: str, chance: Random) -> str:
    """Five quiet lines and the one that matters, in one of two forms."""
    others = [other for other in PROGRAMS if other != program]
    lines = [(chance.choice(others), "info", chance.choice(QUIET)) for _ in range(5)]
    lines.insert(chance.randrange(6), (program, "error", said))
    form = chance.choice(("10:{} {} level={} msg='{}'", "Nov 27 10:{} web3 {}[811]: {}: {}"))
    return "\n".join(form.format(20 + minute, *line) for minute, line in enumerate(lines))


def policy(world: int = 0) -> MockPolicy:
    """The mock that repairs the hosts of a site."""
    return MockPolicy("shell-mock", _Beliefs(world).options)


def _sh(command: str, weight: float, mistake: Mistake = "") -> Option:
    thought = f"Next I use {command.split()[0]}."
    return Option(Message("assistant", f"{thought}\n\n```sh\n{command}\n```"), weight, mistake)


class _Beliefs:
    """Shares by which the mock guesses what holds, and a limit of its own."""

    def __init__(self, world: int) -> None:
        facts, chance = site(world), Random(f"site mock {world}")
        self._service = beliefs(facts.service, SERVICES, chance)
        self._setting = beliefs(facts.setting, SETTINGS, chance)
        self._limit = chance.choice(LIMITS)

    def options(self, history: History) -> list[Option]:
        """The replies in a state."""
        told = "\n".join(m.content for m in history if m.role not in ("system", "assistant"))
        error = named(ERRORS, told)
        program = re.search(r"(\w+)(?:\[811\]: error| level=error)", told)
        used = re.search(r"Mem: +\d+ +(\d+)", told)
        changed, restarted = "written" in told, "restarted" in told
        ready = changed and restarted
        found = [
            _sh("top", 0.04, "malformed"),
            _sh("uptime", 0.03, "skip"),
            _sh("exit", 0.8 if ready else 0.05, "" if ready else "stop"),
            _sh("journalctl -n 6", 0.04 if error else 0.6, "repeat" if error else ""),
            _sh("free -m", 0.04 if used else 0.4, "repeat" if used else ""),
            _sh("systemctl list-units", 0.04, "skip"),
        ]
        if not changed:
            found += self._changes(error, int(used[1]) if used else None)
        if not restarted:
            found += self._restarts(program[1] if program else "", changed=changed)
        return found

    def _changes(self, error: str, used: int | None) -> Iterator[Option]:
        shares = self._setting.get(error) or dict.fromkeys(SETTINGS, 1 / len(SETTINGS))
        likely = used is not None and WAYS[used > self._limit]
        weight = 0.6 if error and used else 0.15
        for (setting, share), way in product(shares.items(), WAYS):
            own = 0.5 if used is None else 0.7 if way == likely else 0.3
            yield _sh(f"conf {setting} {way}", weight * share * own, "guess" if error and used else "skip")

    def _restarts(self, program: str, *, changed: bool) -> Iterator[Option]:
        shares = self._service.get(program) or dict.fromkeys(SERVICES, 1 / len(SERVICES))
        for service, share in shares.items():
            kind: Mistake = "guess" if program else "skip"
            yield _sh(f"systemctl restart {service}", (0.6 if changed else 0.12) * share, kind if changed else "rule")
