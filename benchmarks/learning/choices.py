"""Licences of the best of several Q models: how many are lost, and how many granted by luck, on fewer tasks.

    python -m benchmarks.learning.choices runs/learned/checkpoint runs/network/checkpoint --groups runs/held --tasks 14

takes what `qguide choose` takes, plays nothing, and draws the held-back tasks anew, as many as are
named. The best of the Q models and their sum has a licence by the decisions that chose it as if it
were alone (`alone`), by an interval that is wider for their number (`wider`, which `choose` takes),
or by half of the tasks where the others choose (`half`). Beside it are Q models of random values,
of which every licence is luck.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import numpy as np
import typer

from qguide.qnet.models.ensemble import save_ensemble
from qguide.qnet.models.manifest import PriorSection, read_manifest
from qguide.training.data.decision_groups import GroupLabels
from qguide.training.licence.assessment import ScoredQModel, licence_of_choice, lowest_regret
from qguide.training.licence.held_back import HeldBack
from qguide.training.rollouts.models import Inference

RULES: Final = ("alone", "wider", "half")
Tried = Mapping[str, ScoredQModel]


def granted_shares(tried: Tried, *, tasks: int, repetitions: int, values: Random | None = None) -> list[float]:
    """Share of the draws of so many tasks in which each rule grants a licence.

    Args:
        values: draws the Q models' values anew; None keeps them.
    """
    chance = Random(0)
    informing = _informing(next(iter(tried.values())))
    counts = np.zeros(len(RULES))
    for _ in range(repetitions):
        some = chance.sample(informing, tasks)
        drawn = {name: one.of_tasks(set(some)) for name, one in tried.items()}
        if values:
            drawn = {name: _of_random_values(one, values) for name, one in drawn.items()}
        counts += list(_verdicts(drawn, some))
    return list(counts / repetitions)


def _verdicts(tried: Tried, tasks: Sequence[str]) -> Iterator[bool]:
    best, _ = lowest_regret(tried)
    yield licence_of_choice({best: tried[best]}, best).granted
    yield licence_of_choice(tried, best).granted
    half = set(tasks[::2])
    name, _ = lowest_regret({name: one.of_tasks(half) for name, one in tried.items()})
    licence = tried[name].of_tasks(set(tasks) - half).assess().licence
    yield licence is not None and licence.granted


def _informing(one: ScoredQModel) -> list[str]:
    return list(dict.fromkeys(choice.task for choice in one.choices if len(set(choice.values)) > 1))


def _of_random_values(one: ScoredQModel, values: Random) -> ScoredQModel:
    return replace(one, choices=[replace(c, q_values=tuple(values.random() for _ in c.q_values)) for c in one.choices])


def scored(checkpoints: Sequence[str], held_back: HeldBack) -> dict[str, ScoredQModel]:
    """The Q models' values, and those of their sum."""

    def of(folder: str) -> ScoredQModel:
        return held_back.scored(folder, Inference(), GroupLabels(), prior=_prior_of(folder))

    found = {name: of(name) for name in checkpoints}
    spreads = [one.spread for one in found.values()]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "sum"
        save_ensemble(path, [Path(name) for name in checkpoints], name="sum", spreads=spreads)
        return found | {"sum": of(str(path))}


def _prior_of(folder: str) -> PriorSection | None:
    manifest = read_manifest(Path(folder))
    return manifest.prior if manifest else None


def main(
    checkpoints: Annotated[list[str], typer.Argument(help="Folders of Q models, two or more.")],
    tasks: Annotated[int, typer.Option(help="Number of held-back tasks that are drawn.")],
    groups: Annotated[list[Path] | None, typer.Option(help="Run folders of `groups`.")] = None,
    labels: Annotated[list[Path] | None, typer.Option(help="In their place, of `label`.")] = None,
    repetitions: Annotated[int, typer.Option(help="Number of draws.")] = 200,
) -> None:
    """Print the share of licences by each rule."""
    tried = scored(checkpoints, HeldBack.read(groups or [], labels or []))
    first = next(iter(tried.values()))
    print(f"{tasks} of {len(_informing(first))} tasks", *RULES)  # noqa: T201
    print("these Q models", *granted_shares(tried, tasks=tasks, repetitions=repetitions))  # noqa: T201
    for count in (1, 3, 8):
        noise = {f"{number}": first for number in range(count)}
        shares = granted_shares(noise, tasks=tasks, repetitions=repetitions, values=Random(1))
        print(f"{count} of random values", *shares)  # noqa: T201


if __name__ == "__main__":
    typer.run(main)
