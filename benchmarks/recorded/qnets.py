"""QNets from scratch in the place of the small Q model: do they choose better among recorded attempts?

    python -m benchmarks qnet-recorded --config training/configs/mint/choose_recorded.toml --set turns=2

takes states, folds and groups of `choose-recorded`, so that every task can be compared with it. For
each fold a trunk of one layer learns the words of attempts of the other folds that succeeded, and a
QNet on it their rewards, by the job files of InterCode-SQL.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator

from qguide.qnet.records import ROOT_ID, NodeRow, RolloutRow, TreeRow
from qguide.qnet.types import Message
from qguide.training.choosing.attempts import read_attempts
from qguide.training.choosing.choose_recorded import chosen_rows, run_figures, table_of_attempts
from qguide.training.choosing.features import ReadAttempt
from qguide.training.choosing.folds import Earned, assessed_groups
from qguide.training.choosing.options import ChooseRecordedConfig
from qguide.training.choosing.table import Floats, Ints, Table
from qguide.training.configs.job_files import load_config
from qguide.training.data.runs import open_run, rows_at_once
from qguide.training.data.trajectories import Trajectory
from qguide.training.jobs.sft import run_sft
from qguide.training.jobs.train_qnet import run_train_qnet
from qguide.training.licence.scored_decisions import score_groups
from qguide.training.policy_training.options import SftConfig
from qguide.training.q_training.options import TrainQNetConfig
from qguide.training.rollouts.models import Inference, build_scorer

_JOBS = Path("training/configs/intercode_sql")


class QNetRecordedConfig(ChooseRecordedConfig):
    """Configuration of `python -m benchmarks qnet-recorded`: a job of `choose-recorded`, and sizes.

    Attributes:
        folds: so many of the folds of tasks are judged in, each by all folds of families.
        taught: of each state so many distinct candidates are learned from, drawn at random.
        chars: of each text so many characters are read: the first of a question or an observation,
            the last of an action.
    """

    folds: int = Field(default=5, ge=1)
    taught: int = Field(default=16, ge=2)
    chars: int = Field(default=500, ge=1)

    @model_validator(mode="after")
    def _a_network_reads_words(self) -> Self:
        small = {name: type(self).model_fields[name].default for name in ("words", "steps")}
        if changed := [name for name, default in small.items() if getattr(self, name) != default]:
            raise ValueError(
                f"{' and '.join(changed)} are of the small Q model of choose-recorded, and QNets are trained here; "
                "leave them out"
            )
        return self


def run_qnet_recorded(config: QNetRecordedConfig) -> dict[str, float]:
    """Write what each chooser earns on every task, and the figures, as `choose-recorded` does; "q" is the QNet.

    Returns:
        The mean reward of each chooser.
    """
    with open_run(config.output, config) as run:
        flat, table = table_of_attempts(config, read_attempts(config.source, config, models=config.models))
        found = Earned()
        every = enumerate(assessed_groups(table, config))
        for fold, (groups, own, learned) in islice(every, config.folds * config.family_folds):
            found.add_untrained(table, groups, own)
            for seed in config.trainings:
                q = _q_values(config, flat, table, groups, learned, fold, seed)
                found.add(table, groups, "q", q[groups], seed)
        rows = chosen_rows(table, found)
        told = run_figures(config, table, found, rows) | {"recipe": "QNets from scratch"}
        with rows_at_once(run.rows) as writer:
            writer.write(*rows)
        with rows_at_once(run.metrics) as writer:
            writer.write(told)
        return {name: each["reward"] for name, each in told["all"]["choosers"].items()}


def _q_values(
    config: QNetRecordedConfig,
    flat: Sequence[ReadAttempt],
    table: Table,
    groups: Ints,
    taught: Any,
    fold: int,
    seed: int,
) -> Floats:
    """(n,) Q of the candidates of a fold, by a QNet of the others; 0 elsewhere."""
    folder = config.output / f"{fold}-{seed}"
    rng = np.random.default_rng([fold, seed])
    teaching = [row for row, _ in _states(config, flat, table, taught, rng=rng)]
    _write(folder / "groups", teaching)
    _write(folder / "good", [one for row in teaching for one in _good(row)])
    trunk = {"trajectories": [folder / "good"], "output": folder / "trunk"}
    qnet = {"groups": [folder / "groups"], "trunk": folder / "trunk/checkpoint", "output": folder / "qnet"}
    observed = {"read_at": "observation"} if config.observed else {}
    run_sft(_job(SftConfig, "sft.toml", trunk, seed))
    run_train_qnet(_job(TrainQNetConfig, "train_qnet.toml", qnet | observed, seed))
    scorer = build_scorer(str(folder / "qnet/checkpoint"), Inference(threads=1))
    judged = list(_states(config, flat, table, np.isin(np.arange(len(flat)), groups)))
    found = np.zeros(len(flat), np.float32)
    for start in range(0, len(judged), 16):
        part = judged[start : start + 16]
        for (_, places), [values] in zip(part, score_groups(scorer, [row for row, _ in part]), strict=True):
            for own, value in zip(places, values, strict=True):
                found[own] = value
    return found


def _job(kind: Any, file: str, fields: Mapping[str, Any], seed: int) -> Any:
    job = load_config(kind, _JOBS / file)
    return kind.model_validate(job.model_dump() | fields | {"environment": "imported", "seed": seed})


def _write(folder: Path, rows: Sequence[TreeRow]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with rows_at_once(folder / "rows.jsonl") as writer:
        writer.write(*rows)


def _states(
    config: QNetRecordedConfig, flat: Sequence[ReadAttempt], table: Table, among: Any, rng: Any = None
) -> Iterator[tuple[TreeRow, list[list[int]]]]:
    """Each state as one decision, and the candidates that each of its distinct actions stands for.

    Args:
        rng: draws those that are taught; None takes all.
    """
    rows = np.flatnonzero(among)
    for own in np.split(rows, np.flatnonzero(np.diff(table.states[rows])) + 1):
        places: dict[str, list[int]] = defaultdict(list)
        for place in own.tolist():
            places[_said(config, flat[place])].append(place)
        said = list(places) if rng is None else [str(t) for t in rng.permutation(list(places))[: config.taught]]
        first = flat[own[0]]
        row = TreeRow(
            task_id=first.attempt.task,
            kind=first.attempt.section,
            environment="imported",
            first_observation=_plain(first.asked.text[: config.chars]),
            system=_plain(first.attempt.opening[0].content[: 3 * config.chars]) if first.functions else None,
            nodes=tuple(
                _node(config, number, text, [flat[place] for place in places[text]])
                for number, text in enumerate(said, start=1)
            ),
            draws=1,
        )
        yield row, [places[text] for text in said]


def _said(config: QNetRecordedConfig, candidate: ReadAttempt) -> str:
    """The turns of a candidate up to its last action."""
    parts = [candidate.action.text[-config.chars :].strip()]
    for turn in reversed(candidate.turns[:-1]):
        parts = [turn.action.text[-config.chars :].strip(), turn.observation[: config.chars].strip(), *parts]
    return _plain("\n".join(parts).replace("Action:", "Action"))


def _plain(text: str) -> str:
    """A text without marks that would be read as control tokens."""
    return text.replace("<|", "< |")


def _node(config: QNetRecordedConfig, number: int, text: str, equal: Sequence[ReadAttempt]) -> NodeRow:
    reward = float(np.mean([one.attempt.reward for one in equal]))
    return NodeRow(
        id=number,
        parent=ROOT_ID,
        depth=1,
        action=text,
        source="recorded",
        taken=number == 1,
        count=len(equal),
        observation=_plain(equal[0].answers[-1][: config.chars]) if config.observed else "",
        reward=reward,
        rollouts=(RolloutRow(outcome_reward=reward, steps=2, terminated=True),),
    )


def _good(row: TreeRow) -> Iterator[TreeRow]:
    """The candidates that mostly succeeded, as episodes."""
    for node in row.nodes:
        if node.reward > 0.5:
            system = (Message("system", row.system),) if row.system else ()
            seen = (Message("user", node.observation),) if node.observation else ()
            yield Trajectory(
                messages=(*system, Message("user", row.first_observation), Message("assistant", node.action), *seen),
                reward=node.reward,
                task_id=row.task_id,
                kind=row.kind,
                environment=row.environment,
                terminated=False,
                source="recorded",
            ).to_row()
