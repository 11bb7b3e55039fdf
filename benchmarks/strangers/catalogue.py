"""The environments that are measured: mock, and split into recorded and new tasks, of each."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

import typer

from benchmarks.llm.prompted import PromptedLlm
from benchmarks.strangers.worlds import TASKS_PER_WORLD
from qguide.qnet.types import BatchPolicy, Policy
from qguide.training.environments.registry import SelectedSuite, build_selected_suite, environment_config

_SHOWN_WORLD: Final = 9
"""World whose episodes a language model is shown; none is measured there."""


class Mock(Policy, BatchPolicy, Protocol):
    """A policy that the jobs, the server and the harness can ask."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """One environment as it is measured.

    Attributes:
        environment: its import path, by which jobs know it, too.
        model: import path of its mock's factory, which takes a world.
        recorded: number of tasks that are recorded, from the first.
        aside: number of the tasks after those, which are never recorded.
        max_steps: steps after which an episode is cut off.
        candidates: M, the draws of a decision.
        settings: further fields of its `[environment]` table.
        llm: folder of a language model that plays in place of the mock; None: the mock plays.
    """

    name: str
    environment: str
    model: str
    recorded: int
    aside: int
    max_steps: int
    candidates: int
    settings: tuple[tuple[str, Any], ...] = ()
    llm: Path | None = None

    def policy(self, world: int = 0) -> Mock:
        """The mock or the language model that plays it in a world."""
        module, _, factory = self.model.partition(":")
        build: Callable[[int], Mock] = getattr(import_module(module), factory)
        if self.llm is None:
            return build(world)
        shown = self.suite(new=False, world=_SHOWN_WORLD)
        return PromptedLlm(self.llm, shown, build(_SHOWN_WORLD), max_steps=self.max_steps)

    def suite(self, *, new: bool, world: int = 0) -> SelectedSuite:
        """The tasks that are recorded, or those that are kept aside."""
        first = TASKS_PER_WORLD * world + (self.recorded if new else 0)
        table = {
            "name": self.environment,
            "first_seed": first,
            "count": self.aside if new else self.recorded,
            **dict(self.settings),
        }
        return build_selected_suite(environment_config(table))


_HERE = "benchmarks.strangers"
STRANGERS = {
    stranger.name: stranger
    for stranger in (
        Stranger("errands", f"{_HERE}.errands:ERRANDS", f"{_HERE}.errands:policy", 40, 24, 5, 4),
        Stranger(
            "crafting",
            f"{_HERE}.crafting:Crafting",
            f"{_HERE}.crafting_model:policy",
            40,
            24,
            12,
            5,
            (("harmless", "look"),),
        ),
        Stranger(
            "helpdesk",
            f"{_HERE}.helpdesk:HelpDesk",
            f"{_HERE}.helpdesk_model:policy",
            120,
            72,
            9,
            4,
            (("harmless", 'find_customer({"name": "Mara Lind"})'),),
        ),
        Stranger("search", f"{_HERE}.search:SEARCH", f"{_HERE}.search_model:policy", 60, 36, 6, 5),
        Stranger(
            "clinic",
            f"{_HERE}.aside.clinic:Clinic",
            f"{_HERE}.aside.clinic:policy",
            72,
            48,
            8,
            4,
            (("harmless", 'test({"kind": "blood"})'),),
        ),
        Stranger(
            "bargain",
            f"{_HERE}.aside.bargain:Bargain",
            f"{_HERE}.aside.bargain:policy",
            40,
            24,
            9,
            5,
            (("harmless", "wait"),),
        ),
    )
}
"""The environments by name. The errands are the tutorial's; nothing was chosen by the last two."""


def _outsider(name: str, kind: str, recorded: int, aside: int, max_steps: int, *settings: tuple[str, Any]) -> Stranger:
    path = f"{_HERE}.outsiders.{name}"
    return Stranger(name, f"{path}:{kind}", f"{path}:policy", recorded, aside, max_steps, 5, settings)


_WHOLE = ("reply", "text")
OUTSIDERS = {
    stranger.name: stranger
    for stranger in (
        _outsider("letters", "Letters", 40, 40, 8, _WHOLE, ("harmless", "<action>wait</action>")),
        _outsider("repairs", "Repairs", 72, 24, 9, ("harmless", "wait")),
        _outsider("tables", "Tables", 60, 36, 8, ("harmless", 'inspect({"column": "price"})')),
        _outsider("booking", "Booking", 60, 30, 8, _WHOLE, ("harmless", '{"action": "wait"}')),
        _outsider("road", "Road", 60, 24, 9, _WHOLE, ("harmless", "0")),
        _outsider("incidents", "Incidents", 60, 36, 8, ("harmless", 'get_signals({"incident": "none"})')),
        _outsider("shell", "Shell", 60, 36, 8, _WHOLE, ("harmless", "```sh uptime```")),
        _outsider("trips", "Trips", 60, 36, 8, _WHOLE, ("harmless", "[WAIT]")),
    )
}
"""Environments as outsiders would write them: other forms of replies, and facts in pairs."""

EVERY = STRANGERS | OUTSIDERS


def stranger_of(name: str) -> Stranger:
    """The environment that a command names; another name is refused."""
    if name not in EVERY:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(EVERY)}")
    return EVERY[name]


Named = Annotated[
    list[Stranger] | None,
    typer.Argument(
        help=f"Of {', '.join(EVERY)}; by default the first six.", parser=stranger_of, metavar="ENVIRONMENTS"
    ),
]
"""The environments of a command; None where it names none."""
