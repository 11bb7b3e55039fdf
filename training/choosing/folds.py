"""Folds by task and by family of models, and what every chooser earns in them.

A Q model chooses among candidates of tasks, and of families of models, of which it has seen none.
Its training tasks are split once more: a fifth of them ends training and fits the posterior.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from qguide.training.choosing.choosers import (
    KNOWING,
    Posterior,
    earned,
    fitted_posterior,
    model_scores,
    posterior_scores,
    rule_scores,
)
from qguide.training.choosing.small_q import Training, train_small_q
from qguide.training.choosing.table import Floats, Ints, Table, draw_groups

_HELD_BACK: float = 0.2


@dataclass(frozen=True, slots=True)
class Design:
    """Design of a measurement.

    Attributes:
        size: candidates of a group.
        draws: groups of each state that are judged, for each fold of families.
        task_folds: folds of tasks, or of sections.
        family_folds: 1 lets Q models learn from all families.
        by_section: folds are of whole sections, such as databases.
        trainings: seeds of Q models.
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
    """Rewards of the judged groups.

    Attributes:
        tasks: (g,) of each group.
        rules: by chooser, (g,).
        trained: by chooser, by training, (g,).
        posteriors: fitted ones.
    """

    tasks: list[Ints] = field(default_factory=list)
    rules: dict[str, list[Floats]] = field(default_factory=lambda: defaultdict(list))
    trained: dict[str, dict[int, list[Floats]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    posteriors: list[Posterior] = field(default_factory=list)


def measure(table: Table, design: Design, options: Training) -> Earned:
    """Rewards of all choosers, fold by fold."""
    found = Earned()
    units = table.sections if design.by_section else table.tasks
    for task_fold, judged in enumerate(_folds(units, design.task_folds)):
        for family_fold, unseen in enumerate(_folds(table.families, design.family_folds)):
            rng = np.random.default_rng([task_fold, family_fold])
            groups = draw_groups(
                table, judged & unseen, size=design.size, draws=design.draws, rng=rng
            )
            if not len(groups):
                continue
            found.tasks.append(table.tasks[groups[:, 0]])
            for name, scores in rule_scores(table, groups).items():
                found.rules[name].append(earned(table, groups, scores))
            known = model_scores(table, groups, ~judged)
            found.rules[KNOWING].append(earned(table, groups, known))
            learned = ~judged & (~unseen if design.family_folds > 1 else True)
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
    """Train Q models on candidates and judge them on groups."""
    rng = np.random.default_rng(seed)
    tasks = rng.permutation(np.unique(table.tasks[learned]))
    aside = np.isin(table.tasks, tasks[: max(1, int(len(tasks) * _HELD_BACK))])
    fit, held = (
        draw_groups(table, learned & part, size=design.size, draws=draws, rng=rng)
        for part, draws in ((~aside, design.training_draws), (aside, design.draws))
    )
    scorers = {
        name: train_small_q(table, fit, held, options, in_group=name != "q", seed=seed)
        for name in ("q", "q in group")
    }
    how = fitted_posterior(table, held, {name: score(held) for name, score in scorers.items()})
    logits = {name: score(groups) for name, score in scorers.items()}
    both = posterior_scores(table, groups, logits, how)
    for name, scores in (logits | {"posterior": both}).items():
        found.trained[name][seed].append(earned(table, groups, scores))
    found.posteriors.append(how)


def _folds(units: Ints, count: int) -> Iterator[NDArray[np.bool_]]:
    """True for the units of each fold; units are dealt out by number, shuffled."""
    names = np.random.default_rng(0).permutation(np.unique(units))
    for fold in range(count):
        yield np.isin(units, names[fold::count])
