"""Run-level stop online: recorded attempts, replayed against a running server that compares them.

    python -m benchmarks replay-attempts --config …/configs/mint/replay_attempts.toml

learns a Q model without a network from tasks of all folds but one, serves it, and asks
`/v1/attempts` about groups of attempts at the tasks of that fold. The same groups are judged
offline: at random, by a rule, and by a small Q model that reads how an attempt stands in its group.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from qguide_client import QGuide
from qguide_client.calls import attempts as attempts_call
from rich.console import Console

from benchmarks.measurement.processes import child, free_port, wait_until_ready
from qguide.qnet.errors import ConfigError
from qguide.qnet.types import Message
from qguide.training.choosing.attempts import RecordedAttempt, read_attempts
from qguide.training.choosing.choosers import rule_scores, stopped, stopping_figures, valid_first
from qguide.training.choosing.features import Cut, candidates_of
from qguide.training.choosing.options import Training
from qguide.training.choosing.small_q import credits_of, train_small_q
from qguide.training.choosing.table import Floats, Ints, Table, draw_groups, table_of
from qguide.training.data.runs import JsonlWriter, RunFolder, open_run
from qguide.training.data.trajectories import Trajectory
from qguide.training.jobs.learn import LearnConfig, run_learn
from qguide.training.recordings.formats.read import ReadingModels

_RULE: Final = "valid then majority"


class ReplayAttemptsConfig(ReadingModels):
    """Configuration of `python -m benchmarks replay-attempts`, with the options of reading.

    Attributes:
        source: recordings of several models' attempts at the same tasks.
        output: the run folder to write.
        turns: that every attempt has taken when they are compared.
        candidates: attempts of a group.
        draws: groups of each task.
        folds: tasks of one of so many folds are judged.
        learned: attempts that the served Q model learns from, drawn at random.
        seed: of the draws.
    """

    source: tuple[Path, ...] = Field(min_length=1)
    output: Path
    turns: int = Field(default=2, ge=1)
    candidates: int = Field(default=5, ge=2)
    draws: int = Field(default=20, ge=1)
    folds: int = Field(default=5, ge=2)
    learned: int = Field(default=500, ge=1)
    seed: int = 0


def run_replay_attempts(config: ReplayAttemptsConfig, *, console: Console | None = None) -> dict[str, float]:
    """Write and show success and characters written by the number of attempts that go on.

    Returns:
        The success of each chooser where one attempt goes on.
    """
    with open_run(config.output, config) as run:
        attempts = read_attempts(config.source, config)
        states = candidates_of(attempts, Cut(turns=config.turns, observed=True))
        table = table_of(states, {attempt.model: "" for attempt in attempts})
        flat = [one.attempt for found in states.values() for one in found]
        rng = np.random.default_rng(config.seed)
        tasks = rng.permutation(np.unique(table.tasks))
        judged = np.isin(table.tasks, tasks[:: config.folds])
        groups = draw_groups(table, judged, size=config.candidates, draws=config.draws, rng=rng)
        aside = {table.task_names[task] for task in tasks[:: config.folds]}
        learned = [attempt for attempt in attempts if attempt.task not in aside]
        model = _learned(config, [learned[i] for i in rng.permutation(len(learned))])
        with _serving(model, config.output) as url:
            online, valid = _online(url, flat, groups, config.turns)
        rules = rule_scores(table, groups)
        scores = {
            "random": rules["random"],
            _RULE: rules[_RULE],
            "q in group, offline": _offline(config, table, ~judged, groups),
            "server": online,
            "server, valid first": valid_first(valid, online),
        }
        kept = {name: [[stopped(table, groups, own)]] for name, own in scores.items()}
        group_tasks = table.tasks[groups[:, 0]]
        rows = stopping_figures(group_tasks, np.ones(len(groups), np.bool_), kept, table.unit)
        run.metrics.unlink(missing_ok=True)
        with JsonlWriter(run.metrics) as writer:
            writer.write({"tasks": len(set(group_tasks.tolist())), "stopping": rows})
    _show(rows, console or Console())
    return {name: rows[0][name]["success"] for name in scores}


def _learned(config: ReplayAttemptsConfig, attempts: Sequence[RecordedAttempt]) -> Path:
    """The checkpoint of a Q model that was learned from these attempts."""
    folder = config.output / "episodes"
    folder.mkdir(parents=True, exist_ok=True)
    rows = RunFolder(folder).rows
    rows.unlink(missing_ok=True)
    with JsonlWriter(rows) as writer:
        for attempt in attempts[: config.learned]:
            turns = [(t.action, Message("user", t.observation)) for t in attempt.turns]
            writer.write(
                Trajectory(
                    kind=attempt.section,
                    environment="recorded",
                    task_id=attempt.task,
                    messages=(*attempt.opening, *chain.from_iterable(turns)),
                    reward=attempt.reward,
                    source=attempt.model,
                ).to_row()
            )
    learned = RunFolder(config.output / "learned")
    run_learn(LearnConfig(source=(folder,), output=learned.path, salt="00"))
    return learned.checkpoint


@contextmanager
def _serving(model: Path, folder: Path) -> Iterator[str]:
    """`qguide serve` with this Q model during the block; yields its root URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "qguide", "serve", "--port", str(port), "--unlicensed"]
    options = ["--policy", "scripted", "--scorer", f"validity+{model}"]
    log = folder / "serve.log"
    with child("qguide serve", [*command, *options], log=log, environment={}) as process:
        with httpx.Client(base_url=url) as http:
            wait_until_ready(process, http, "/readyz")
        yield url


def _online(url: str, flat: Sequence[RecordedAttempt], groups: Ints, turns: int) -> tuple[Floats, NDArray[np.bool_]]:
    """(g, m) values of the attempts by the server, and whether their latest action was valid."""
    values = np.zeros(groups.shape, np.float32)
    valid = np.zeros(groups.shape, np.bool_)
    with QGuide(url) as client:
        for row, group in enumerate(groups):
            sent = [_sent(str(place), flat[i], turns) for place, i in enumerate(group)]
            told = client.ask(attempts_call(sent, {"go_on": len(group), "out_of_domain": "guide"}))
            if unknown := told.warnings:
                raise ConfigError(f"an attempt has no value: {unknown[0]}")
            # Not the order but the values, so that equal ones are drawn as they are offline.
            values[row] = [one.value for one in told.attempts]
            valid[row] = [one.valid for one in told.attempts]
    return values, valid


def _sent(name: str, attempt: RecordedAttempt, turns: int) -> dict[str, Any]:
    messages = [{"role": one.role, "content": one.text} for one in attempt.opening]
    for turn in attempt.turns[:turns]:
        messages.append({"role": "assistant", "content": turn.action.text})
        messages.append({"role": "user", "content": turn.observation})
    return {"episode_id": name, "messages": messages}


def _offline(config: ReplayAttemptsConfig, table: Table, learned: NDArray[np.bool_], groups: Ints) -> Floats:
    """(g, m) logits of the small Q model that reads candidates in their group."""
    rng = np.random.default_rng(config.seed)
    held = np.isin(table.tasks, rng.permutation(np.unique(table.tasks[learned]))[::5])
    fit, aside = (
        draw_groups(table, learned & part, size=config.candidates, draws=config.draws, rng=rng)
        for part in (~held, held)
    )
    credit = credits_of(table, fit)
    score = train_small_q(table, fit, aside, Training(), credit=credit, in_group=True, seed=config.seed)
    return score(groups)


def _show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    names = [name for name in rows[0] if name != "go_on"]
    console.print("go on", *names, sep=" | ")
    for row in rows:
        parts = [f"{row[n]['success']:.1%}, {row[n]['written']:.0%}" for n in names]
        console.print(row["go_on"], *parts, sep=" | ")
