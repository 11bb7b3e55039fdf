"""Choice among what real LLMs did in one state: rules, a small Q model and both, side by side.

    qguide choose-recorded --config training/configs/mint/choose_recorded.toml

reads recordings of any format, or runs of `recorded-groups`, and plays nothing. Candidates are
drawn at random among the attempts of a state; no chooser but "best model" knows who made one. The
recipe of the Q model is fixed, so that what was found on one recording can be tried on another.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import torch
from pydantic import FiniteFloat
from tokenizers import Tokenizer

from qguide.qnet.errors import ConfigError
from qguide.qnet.records import Row
from qguide.training.choosing.attempts import RecordedAttempt, family_of, read_attempts
from qguide.training.choosing.choosers import rule_scores
from qguide.training.choosing.features import ReadAttempt, candidates_of
from qguide.training.choosing.figures import figures, task_means
from qguide.training.choosing.folds import Earned, measure
from qguide.training.choosing.options import ChooseRecordedConfig, Training
from qguide.training.choosing.table import Table, table_of
from qguide.training.data.runs import open_run, rows_at_once

RECIPE: Final = "recorded-4"
"""Name of the features, the model and its training; changed whenever one of them is."""


CHOICES: Final = "choices.jsonl"
_SHOWN_RULE: Final = "valid then majority"


class ChosenRow(Row):
    """One task.

    Attributes:
        rewards: mean reward of each chooser, over groups and trainings.
        trainings: of each chooser that was trained, by training.
    """

    task_id: str
    section: str
    rewards: Mapping[str, FiniteFloat]
    trainings: Mapping[str, tuple[FiniteFloat, ...]]


class OfferedAttempt(Row):
    """A candidate of a choice."""

    model: str
    said: str
    answer: str | None = None
    q_value: FiniteFloat
    valid: bool
    reward: FiniteFloat


class ChoiceRow(Row):
    """One choice among attempts, as `choices.jsonl` holds it.

    Attributes:
        asked: the last message before the first action.
        by_q, by_rule: places of the candidates that Q, and the rule "valid then majority", prefer.
    """

    task_id: str
    asked: str
    candidates: tuple[OfferedAttempt, ...]
    by_q: tuple[int, ...]
    by_rule: tuple[int, ...]


def run_choose_recorded(config: ChooseRecordedConfig) -> dict[str, float]:
    """Write a row for each task, and the figures."""
    with open_run(config.output, config) as run:
        attempts = read_attempts(config.source, config, models=config.models)
        flat, table = table_of_attempts(config, attempts)
        with _one_thread():
            found = measure(table, config, Training(steps=config.steps))
        if not found.tasks:
            raise ConfigError(
                f"no state of {', '.join(config.judged_in)} has {config.candidates} candidates "
                "in a fold; lower candidates, turns or family_folds"
            )
        rows = chosen_rows(table, found)
        told = run_figures(config, table, found, rows)
        with rows_at_once(run.rows) as writer:
            writer.write(*rows)
        with rows_at_once(run.metrics) as writer:
            writer.write(told)
        with rows_at_once(config.output / CHOICES) as writer:
            writer.write(*islice(_choices(flat, table, found), config.shown))
    rewards = {name: each["reward"] for name, each in told["all"]["choosers"].items()}
    return rewards | {"calls read": told["calls_read"], "licences": told["licences"]}


def table_of_attempts(
    config: ChooseRecordedConfig, attempts: Sequence[RecordedAttempt]
) -> tuple[list[ReadAttempt], Table]:
    """The candidates, and their table in the same order."""
    states = candidates_of(attempts, config.cut)
    if not states:
        raise ConfigError(
            f"no two of {len(attempts):,} attempts share a state after {config.after} actions and "
            f"have {config.turns} turns behind it; lower after or turns"
        )
    models = {attempt.model for attempt in attempts}
    families = {model: family_of(model, config.families) for model in models}
    table = table_of(states, families, tokens_of(config.tokenizer) if config.tokenizer else None)
    return [one for found in states.values() for one in found], table if config.words else table.without_words()


def tokens_of(tokenizer: Path) -> Callable[[str], int]:
    """Counts a text's tokens by a `tokenizer.json`."""
    try:
        encode = Tokenizer.from_file(str(tokenizer)).encode
    except Exception as error:  # it has no class of its own
        raise ConfigError(f"{tokenizer} is no tokenizer: {error}; name a tokenizer.json") from error
    return lambda text: len(encode(text, add_special_tokens=False))


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread of torch: more of them only wait for each other on networks this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _choices(flat: Sequence[ReadAttempt], table: Table, found: Earned) -> Iterator[ChoiceRow]:
    written = set()
    for groups, logits in found.shown:
        ruled = rule_scores(table, groups)[_SHOWN_RULE]
        for group, own, rule in zip(groups, logits, ruled, strict=True):
            offered = [flat[i] for i in group]
            if offered[0].attempt.task in written:  # by the models of another fold
                continue
            written.add(offered[0].attempt.task)
            yield ChoiceRow(
                task_id=offered[0].attempt.task,
                asked=offered[0].attempt.opening[-1].text,
                candidates=tuple(map(_offered, offered, own.tolist())),
                by_q=tuple(np.flatnonzero(own == own.max()).tolist()),
                by_rule=tuple(np.flatnonzero(rule == rule.max()).tolist()),
            )


def _offered(candidate: ReadAttempt, logit: float) -> OfferedAttempt:
    return OfferedAttempt(
        model=candidate.attempt.model,
        said=candidate.action.text,
        answer=candidate.answers[-1] if candidate.observed else None,
        q_value=round(1 / (1 + math.exp(-logit)), 4),
        valid=candidate.valid,
        reward=candidate.attempt.reward,
    )


def chosen_rows(table: Table, found: Earned) -> list[ChosenRow]:
    """One row for each task, with what each chooser earned."""
    tasks, means, single = task_means(found)
    sections = dict(zip(table.tasks.tolist(), table.sections.tolist(), strict=True))
    return [
        ChosenRow(
            task_id=table.task_names[task],
            section=table.section_names[sections[task]],
            rewards={name: round(float(values[i]), 6) for name, values in means.items()},
            trainings={name: tuple(round(float(values[i]), 6) for values in own) for name, own in single.items()},
        )
        for i, task in enumerate(tasks)
    ]


def run_figures(config: ChooseRecordedConfig, table: Table, found: Earned, rows: Sequence[ChosenRow]) -> dict[str, Any]:
    """The figures of a run, as `metrics.jsonl` holds them."""
    told: dict[str, Any] = {
        "recipe": RECIPE if config.words else f"{RECIPE} without words",
        "attempts": len(table.rewards),
        "states": len(table.first),
        "models": len(table.model_names),
        "families": len(set(table.families.tolist())),
        "calls_read": round(table.read, 4),
        "candidates": config.candidates,
        "until_decided": found.until_decided(),
        "taus": found.taus,
        "taus_in_group": found.taus_in_group,
        "licences": round(sum(found.licences) / max(1, len(found.licences)), 4),
        "all": figures(table, found, kept=[True] * len(rows)),
    }
    untouched = [crc32(row.task_id.encode()) % 2 == 1 for row in rows]
    if config.halves and any(untouched):
        told["untouched"] = figures(table, found, kept=untouched)
    return told
