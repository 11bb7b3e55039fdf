"""Folds by task and by family of models, and what every chooser earns in them.

A Q model chooses among candidates of tasks, and of families of models, of which it has seen none.
Each of its members holds a fifth of the training tasks back, to end training and to fit the
weight of the votes.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qguide.training.choosing.choosers import (
    KNOWING,
    earned,
    fitted_tau,
    model_scores,
    posterior_scores,
    rule_scores,
)
from qguide.training.choosing.small_q import Training, train_small_q
from qguide.training.choosing.stopping import STOPPING, stopped
from qguide.training.choosing.table import Floats, Ints, Table, draw_groups

_PARTS: Final = 5
_MEMBERS: Final = 2


@dataclass(frozen=True, slots=True)
class Design:
    """Design of a measurement.

    Attributes:
        draws: groups of each state that are assessed, for each fold of families.
        task_folds: folds of tasks, or of sections.
        family_folds: 1 lets Q models learn from all families.
        by_section: folds are of whole sections, such as databases.
        training_draws: groups of each state that Q models learn from.
    """

    size: int = 5
    draws: int = 20
    task_folds: int = 5
    family_folds: int = 1
    by_section: bool = False
    trainings: tuple[int, ...] = (0, 1, 2)
    training_draws: int = 30


@dataclass(slots=True)
class Earned:
    """Rewards of the assessed groups.

    Attributes:
        tasks: (g,) of each group.
        rules: by chooser, (g,).
        trained: by chooser, by training, (g,).
        taus: the fitted weights of the votes.
        kept: by chooser, by training, what is lost and saved by stopping the others.
        shown: the first group of each task, and the logits of Q in its group by the first training.
    """

    tasks: list[Ints] = field(default_factory=list)
    rules: dict[str, list[Floats]] = field(default_factory=lambda: defaultdict(list))
    trained: dict[str, dict[int, list[Floats]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    taus: list[float] = field(default_factory=list)
    kept: dict[str, dict[int, list[Floats]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    shown: list[tuple[Ints, Floats]] = field(default_factory=list)

    def add(
        self, table: Table, groups: Ints, name: str, scores: Floats, seed: int | None = None
    ) -> None:
        """Note what a chooser earns in some groups, and what it stops."""
        into = self.rules[name] if seed is None else self.trained[name][seed]
        into.append(earned(table, groups, scores))
        if name in STOPPING:
            self.kept[name][seed or 0].append(stopped(table, groups, scores))


def measure(table: Table, design: Design, options: Training) -> Earned:
    """Rewards of all choosers, fold by fold."""
    found = Earned()
    units = table.sections if design.by_section else table.tasks
    for task_fold, assessed in enumerate(_folds(units, design.task_folds)):
        for family_fold, unseen in enumerate(_folds(table.families, design.family_folds)):
            rng = np.random.default_rng([task_fold, family_fold])
            groups = draw_groups(
                table, assessed & unseen, size=design.size, draws=design.draws, rng=rng
            )
            if not len(groups):
                continue
            found.tasks.append(table.tasks[groups[:, 0]])
            for name, scores in rule_scores(table, groups).items():
                found.add(table, groups, name, scores)
            found.add(table, groups, KNOWING, model_scores(table, groups, ~assessed))
            learned = ~assessed & (~unseen if design.family_folds > 1 else True)
            for seed in design.trainings:
                _add_training(found, table, groups, learned, design, options, seed)
    return found


def _add_training(
    found: Earned,
    table: Table,
    groups: Ints,
    learned: NDArray[np.bool_],
    design: Design,
    options: Training,
    seed: int,
) -> None:
    """Train Q models on candidates and assess them on groups.

    A Q model is the mean of several, each with other tasks held back.
    """
    rng = np.random.default_rng(seed)
    tasks = rng.permutation(np.unique(table.tasks[learned]))
    held_back, held_logits = [], []
    logits = {name: np.zeros(groups.shape, np.float32) for name in ("q", "q in group")}
    for member in range(_MEMBERS):
        aside = np.isin(table.tasks, tasks[member::_PARTS])
        fit, held = (
            draw_groups(table, learned & part, size=design.size, draws=draws, rng=rng)
            for part, draws in ((~aside, design.training_draws), (aside, design.draws))
        )
        for name in logits:
            score = train_small_q(
                table, fit, held, options, in_group=name != "q", seed=seed * _MEMBERS + member
            )
            logits[name] += score(groups) / _MEMBERS
            if name == "q":
                held_back.append(held)
                held_logits.append(score(held))
    tau = fitted_tau(table, np.concatenate(held_back), np.concatenate(held_logits))
    found.taus.append(tau)
    if seed == design.trainings[0]:
        firsts = np.unique(table.tasks[groups[:, 0]], return_index=True)[1]
        found.shown.append((groups[firsts], logits["q in group"][firsts]))
    both = posterior_scores(table, groups, logits["q"], tau)
    for name, scores in (logits | {"posterior": both}).items():
        found.add(table, groups, name, scores, seed)


def _folds(units: Ints, count: int) -> Iterator[NDArray[np.bool_]]:
    """True for the units of each fold; units are dealt out by number, shuffled."""
    names = np.random.default_rng(0).permutation(np.unique(units))
    for fold in range(count):
        yield np.isin(units, names[fold::count])
