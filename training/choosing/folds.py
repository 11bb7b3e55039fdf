"""Folds by task and by family of models, and what every chooser earns in them.

A Q model chooses among candidates of tasks, and of families of models, of which it has seen none.
Each of its members holds a fifth of the training tasks back, to end training and to fit the
weight of the votes. On the same tasks Q has to earn its licence: the chooser "licensed" follows Q
in its group if that earned more than the best rule there, else that rule. A Q model of other
sections than it chooses in has none (so `by_section`), because nothing held back is like them.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from qguide.qnet.errors import ConfigError
from qguide.training.choosing.choosers import (
    KNOWING,
    STOPPING,
    best_rule,
    earned,
    fitted_served_tau,
    fitted_tau,
    model_scores,
    posterior_scores,
    rule_scores,
    served_posterior,
    stopped,
    valid_first,
    written_until_decided,
)
from qguide.training.choosing.options import FoldDesign, Training
from qguide.training.choosing.small_q import credits_of, train_small_q
from qguide.training.choosing.table import Floats, Ints, Table, draw_groups

_PARTS: Final = 5
_MEMBERS: Final = 5


@dataclass(slots=True)
class Earned:
    """Rewards of the assessed groups.

    Attributes:
        tasks: (g,) of each group.
        rules: by chooser, (g,).
        trained: by chooser, by training, (g,).
        taus, taus_in_group: the fitted weights of the votes beside Q alone, and beside Q in its group.
        licences: true for every Q model that "licensed" follows.
        kept: by chooser, by training, what is lost and saved by stopping the others.
        shown: the first group of each task, and the logits of Q in its group by the first training.
        decided: by chooser, what it earns and the share of the characters written until decided.
    """

    tasks: list[Ints] = field(default_factory=list)
    rules: dict[str, list[Floats]] = field(default_factory=lambda: defaultdict(list))
    trained: dict[str, dict[int, list[Floats]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    taus: list[float] = field(default_factory=list)
    taus_in_group: list[float] = field(default_factory=list)
    licences: list[bool] = field(default_factory=list)
    kept: dict[str, dict[int, list[Floats]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    shown: list[tuple[Ints, Floats]] = field(default_factory=list)
    decided: dict[str, list[tuple[Floats, Floats]]] = field(default_factory=lambda: defaultdict(list))

    def add_untrained(self, table: Table, groups: Ints, fold: NDArray[np.bool_]) -> None:
        """Note what the rules earn in some groups, and the best model of other tasks than the fold's."""
        self.tasks.append(table.tasks[groups[:, 0]])
        for name, scores in rule_scores(table, groups).items():
            self.add(table, groups, name, scores)
        self.decided["votes"].append((self.rules["majority"][-1], written_until_decided(table, groups)))
        self.add(table, groups, KNOWING, model_scores(table, groups, ~fold))

    def until_decided(self) -> dict[str, dict[str, float]]:
        """By chooser the mean reward over groups, and the share of the characters written."""
        return {
            name: {
                "reward": round(float(np.concatenate([r for r, _ in parts]).mean()), 4),
                "written": round(float(np.concatenate([w for _, w in parts]).mean()), 4),
            }
            for name, parts in self.decided.items()
        }

    def add(self, table: Table, groups: Ints, name: str, scores: Floats, seed: int | None = None) -> None:
        """Note what a chooser earns in some groups, and what it stops."""
        into = self.rules[name] if seed is None else self.trained[name][seed]
        into.append(earned(table, groups, scores))
        if name in STOPPING:
            self.kept[name][seed or 0].append(stopped(table, groups, scores))


def measure(table: Table, design: FoldDesign, options: Training) -> Earned:
    """Rewards of all choosers, fold by fold."""
    found = Earned()
    for groups, fold, learned in assessed_groups(table, design):
        found.add_untrained(table, groups, fold)
        for seed in design.trainings:
            _add_training(found, table, groups, learned, design, options, seed)
    return found


def assessed_groups(table: Table, design: FoldDesign) -> Iterator[tuple[Ints, NDArray[np.bool_], NDArray[np.bool_]]]:
    """The groups of each fold that has some, the candidates of its tasks, and those to learn from."""
    units = table.sections if design.by_section else table.tasks
    judges, teaches = (_within(table, names) for names in (design.judged_in, design.learned_in))
    for task_fold, fold in enumerate(_folds(units, design.task_folds)):
        for family_fold, unseen in enumerate(_folds(table.families, design.family_folds)):
            rng = np.random.default_rng([task_fold, family_fold])
            groups = draw_groups(table, fold & judges & unseen, size=design.candidates, draws=design.draws, rng=rng)
            if len(groups):
                yield groups, fold, ~fold & teaches & (~unseen if design.family_folds > 1 else True)


def _add_training(
    found: Earned,
    table: Table,
    groups: Ints,
    learned: NDArray[np.bool_],
    design: FoldDesign,
    options: Training,
    seed: int,
) -> None:
    """Train Q models on candidates and assess them on groups.

    A Q model is the mean of several, each with other tasks held back.
    """
    rng = np.random.default_rng(seed)
    tasks = rng.permutation(np.unique(table.tasks[learned]))[: design.training_tasks]
    learned = learned & np.isin(table.tasks, tasks)
    held_back, held_logits, held_in_group = [], [], []
    logits = {name: np.zeros(groups.shape, np.float32) for name in ("q", "q in group")}
    for member in range(_MEMBERS):
        aside = np.isin(table.tasks, tasks[member::_PARTS])
        fit, held = _fit_and_held(table, learned & ~aside, learned & aside, design, rng)
        credit = credits_of(table, fit)
        for name in logits:
            score = train_small_q(
                table, fit, held, options, credit=credit, in_group=name != "q", seed=seed * _MEMBERS + member
            )
            logits[name] += score(groups) / _MEMBERS
            if name == "q":
                held_back.append(held)
                held_logits.append(score(held))
            else:
                held_in_group.append(score(held))
    held, held_q = np.concatenate(held_back), np.concatenate(held_logits)
    held_together = np.concatenate(held_in_group)
    tau, tau_in_group = (fitted_tau(table, held, own) for own in (held_q, held_together))
    found.taus.append(tau)
    found.taus_in_group.append(tau_in_group)
    if seed == design.trainings[0]:
        _add_decided(found, table, groups, held, held_q, logits["q"])
        firsts = np.unique(table.tasks[groups[:, 0]], return_index=True)[1]
        found.shown.append((groups[firsts], logits["q in group"][firsts]))
    together = posterior_scores(table, groups, logits["q in group"], tau_in_group)
    both = {
        "posterior": posterior_scores(table, groups, logits["q"], tau),
        "posterior in group": together,
        "valid then posterior": valid_first(table.valid[groups], together),
    }
    rule, better = best_rule(table, held, held_together)
    alike = design.learned_in == design.judged_in and not design.by_section
    found.licences.append(better and alike)
    licensed = logits["q in group"] if found.licences[-1] else rule_scores(table, groups)[rule]
    for name, scores in (logits | both | {"licensed": licensed}).items():
        found.add(table, groups, name, scores, seed)


def _fit_and_held(
    table: Table, fitting: NDArray[np.bool_], aside: NDArray[np.bool_], design: FoldDesign, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    fit, held = (
        draw_groups(table, part, size=design.candidates, draws=draws, rng=rng)
        for part, draws in ((fitting, design.training_draws), (aside, design.draws))
    )
    if not len(fit) or not len(held):
        count = len(np.unique(table.tasks[fitting | aside]))
        raise ConfigError(
            f"{count} tasks to learn from have no groups of {design.candidates} "
            "candidates in a fold; name other learned_in "
            f"({', '.join(design.learned_in)}), lower candidates, or raise training_tasks"
        )
    return fit, held


def _add_decided(
    found: Earned, table: Table, groups: Ints, held_back: Ints, held_logits: Floats, logits: Floats
) -> None:
    """Draw until the server's posterior is decided, with Q of one training."""
    q = expit(logits)
    tau = fitted_served_tau(table, held_back, expit(held_logits))
    reward = earned(table, groups, served_posterior(table, groups, q, tau))
    written = written_until_decided(table, groups, q, tau)
    found.decided["posterior"].append((reward, written))


def _folds(units: Ints, count: int) -> Iterator[NDArray[np.bool_]]:
    """True for the units of each fold; units are dealt out by number, shuffled."""
    names = np.random.default_rng(0).permutation(np.unique(units))
    for fold in range(count):
        yield np.isin(units, names[fold::count])


def _within(table: Table, patterns: tuple[str, ...]) -> NDArray[np.bool_]:
    fits = [any(fnmatch(name, one) for one in patterns) for name in table.section_names]
    return np.array(fits)[table.sections]
