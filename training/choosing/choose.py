"""Choose among Q models by their regret on held-back decisions, and write the best one.

    qguide choose runs/learned/checkpoint runs/network/checkpoint --groups runs/held_back --output runs/chosen

reads checkpoints of any kinds, and decision groups, or labelled trees of recordings, of tasks that
none of them was trained on; their sum is one more candidate. Each is judged as it would be served.
The one of the lowest regret is written, with its licence by those decisions and the regret of all
in its manifest. It plays nothing; a killed run starts over.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from pydantic import Field, model_validator
from rich.console import Console
from rich.table import Table

from qguide.qnet.errors import CheckpointError, ConfigError, HistoryTooLongError
from qguide.qnet.models.ensemble import MEMBERS, save_ensemble
from qguide.qnet.models.manifest import JudgedBy, Licence, Manifest, PriorSection, read_manifest, replace_manifest
from qguide.qnet.records import TreeRow
from qguide.training.algorithms.choice_quality import ScoredChoice, spread_of
from qguide.training.data.decision_groups import GroupLabels, read_groups
from qguide.training.data.records import LabelledTree, labelled_tree
from qguide.training.data.row_files import sha256_of_rows
from qguide.training.data.runs import open_run, read_rows, rows_at_once
from qguide.training.jobs.choice_regret import choices_by, sibling_choices_by
from qguide.training.licence.assessment import Assessment, assess
from qguide.training.licence.verdict import show_licence
from qguide.training.options import JobOptions
from qguide.training.rollouts.models import (
    INFERENCE_MAY_CHANGE,
    Inference,
    build_scorer,
    model_folder,
    sha256_of_q_model,
)

CHECKPOINT: Final = "checkpoint"
_SUM: Final = "sum"


class ChooseConfig(JobOptions):
    """Configuration of `qguide choose`.

    Attributes:
        checkpoints: "embedded", or folders of Q models: QNets, implicit Qs, ensembles and those of
            `learn`. Of equal regret the first one is taken.
        groups: run folders of `groups`, of tasks that none was trained on.
        labels: in their place run folders of `label`, whose siblings are decisions; each Q model
            keeps its own prior, because how often siblings were taken is not how often they will
            be drawn.
        output: the folder to write.
        sums: try the sum of all, each scaled by the spread of its values, too.
        group_labels: how a candidate's label is computed from its continuations.
        inference: how the Q models run.
    """

    checkpoints: tuple[str, ...] = Field(min_length=1)
    groups: tuple[Path, ...] = ()
    labels: tuple[Path, ...] = ()
    output: Path
    sums: bool = True
    group_labels: GroupLabels = GroupLabels()
    inference: Inference = Inference()

    @model_validator(mode="after")
    def _one_kind_of_decisions(self) -> Self:
        if bool(self.groups) == bool(self.labels):
            raise ValueError(
                f"groups are {list(map(str, self.groups))} and labels {list(map(str, self.labels))}; name one of them, "
                "of tasks that no checkpoint was trained on"
            )
        return self


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Decisions that judge Q models."""

    rows: Sequence[TreeRow]
    trees: Sequence[LabelledTree]
    judged_by: tuple[JudgedBy, ...]

    @classmethod
    def read(cls, groups: Sequence[Path], labels: Sequence[Path] = ()) -> Self:
        """Read run folders of `groups`, or of `label`."""
        rows = {path: list(read_groups(path)) for path in groups}
        trees = {path: [labelled_tree(row) for row in read_rows(path, TreeRow)] for path in labels}
        if judged := next((path for path, own in trees.items() if any(one.target == "judge" for one in own)), None):
            raise ConfigError(f"labels of {judged} are a judge's scores, which judge nothing; label by outcomes")
        tasks = {path: len({one.task_id for one in own}) for path, own in (rows | trees).items()}
        return cls(
            [row for own in rows.values() for row in own],
            [tree for own in trees.values() for tree in own],
            tuple(JudgedBy(name=p.name, sha256=sha256_of_rows([p]), tasks=count) for p, count in tasks.items()),
        )

    def choices(self, q_model: str, inference: Inference, labels: GroupLabels) -> list[ScoredChoice]:
        """The decisions between several candidates, with a Q model's values."""
        scorer = build_scorer(q_model, inference)
        found = sibling_choices_by(scorer, self.trees) if self.trees else choices_by(scorer, self.rows, labels)
        if not found:
            names = ", ".join(one.name for one in self.judged_by)
            raise ConfigError(f"no decision of {names} is between several candidates; draw more of them")
        return found

    def assess(self, choices: Sequence[ScoredChoice], prior: PriorSection | None = None) -> Assessment:
        """The Q model's verdict, by the prior that is fitted here, or on trees by its own, if that is of votes."""
        known = prior if prior and prior.by == "votes" else None
        assessed = assess(choices, prior=known, fits_prior=not self.trees)
        licence = assessed.licence and assessed.licence.model_copy(update={"judged_by": self.judged_by})
        return replace(assessed, licence=licence)


@dataclass(frozen=True, slots=True)
class Contender:
    """A Q model on held-back decisions.

    Attributes:
        spread: of its values between the candidates of a state.
        prior, licence: as it would be served.
    """

    name: str
    folder: Path
    manifest: Manifest
    spread: float
    prior: PriorSection | None
    licence: Licence

    @classmethod
    def of(cls, q_model: str, held_back: HeldBack, config: ChooseConfig) -> Self:
        """Score the decisions, and judge."""
        folder = model_folder(q_model, "qnet")
        if (manifest := read_manifest(folder)) is None:
            raise CheckpointError(f"{folder} has no manifest; it was not trained here")
        choices = held_back.choices(q_model, config.inference, config.group_labels)
        assessed = held_back.assess(choices, manifest.prior)
        if assessed.licence is None or not assessed.licence.choosers:
            names = ", ".join(one.name for one in held_back.judged_by)
            raise ConfigError(f"no decision of {names} differs in outcome, so none judges; play more tasks")
        licence = _kept(manifest.licence, assessed.licence)
        return cls(manifest.name, folder, manifest, spread_of(choices), assessed.prior, licence)

    @property
    def regret(self) -> float:
        """Outcome of the best candidates, minus that of its choices."""
        return self.licence.choosers["posterior"].regret


def _kept(own: Licence | None, found: Licence) -> Licence:
    """The licence by these decisions, or the one that the Q model has, if it gains here, too.

    What `learn` cross-fits sees whole episodes, so it may be sure where a few decisions are not.
    """
    if found.granted or own is None or not own.granted or found.gain <= 0:
        return found
    return found.model_copy(update={"granted": True, "reason": f"as before, {own.reason}; here {found.reason}"})


def run_choose(config: ChooseConfig, *, console: Console | None = None) -> Manifest:
    """Write the best Q model's checkpoint, and show all; its manifest says whether it may guide."""
    weights = {f"sha256_of_{i}": sha256_of_q_model(name, config.inference) for i, name in enumerate(config.checkpoints)}
    with open_run(config.output, config, may_change=INFERENCE_MAY_CHANGE | {"output"}, weights=weights) as run:
        shutil.rmtree(run.path / _SUM, ignore_errors=True)
        console = console or Console()
        tried = _contenders(config, HeldBack.read(config.groups, config.labels), run.path / _SUM, console)
        best = min(tried.values(), key=lambda one: one.regret)
        saved = _write(best, run.path / CHECKPOINT, {name: one.regret for name, one in tried.items()})
        shutil.rmtree(run.path / _SUM, ignore_errors=True)
        with rows_at_once(run.metrics) as metrics:
            metrics.write({name: one.licence.model_dump(mode="json") for name, one in tried.items()})
    console.print(_table(tried, best))
    console.print(f"{best.name} → {config.output / CHECKPOINT}", markup=False, soft_wrap=True)
    show_licence(saved, console)
    return saved


def _contenders(config: ChooseConfig, held_back: HeldBack, sum_folder: Path, console: Console) -> dict[str, Contender]:
    """The Q models that can read all decisions, and their sum, by names that differ."""
    found: list[Contender] = []
    unread: list[HistoryTooLongError] = []
    for q_model in config.checkpoints:
        try:
            found.append(Contender.of(q_model, held_back, config))
        except HistoryTooLongError as error:  # others may read more
            unread.append(error)
            console.print(f"{q_model} is left out: {error}", markup=False, soft_wrap=True)
    if not found:
        raise unread[0]
    summed = [one for one in found if one.manifest.kind in MEMBERS and one.spread > 0]
    if config.sums and len(summed) > 1:
        try:
            save_ensemble(sum_folder, [one.folder for one in summed], name=_SUM, spreads=[one.spread for one in summed])
        except CheckpointError as error:  # some networks read the observation, and some cannot
            console.print(f"the sum is left out: {error}", markup=False, soft_wrap=True)
        else:
            found.append(Contender.of(str(sum_folder), held_back, config))
    names = [one.name for one in found]
    return {one.name if names.count(one.name) == 1 else f"{one.name}-{number}": one for number, one in enumerate(found)}


def _write(best: Contender, folder: Path, regrets: dict[str, float]) -> Manifest:
    unfinished = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(best.folder, unfinished)
    figures = best.manifest.metrics | {f"regret_of_{name}": regret for name, regret in regrets.items()}
    verdict = {"prior": best.prior, "licence": best.licence, "unjudged": "", "metrics": figures}
    manifest = best.manifest.model_copy(update=verdict)
    replace_manifest(unfinished, manifest)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    return manifest


def _table(tried: dict[str, Contender], best: Contender) -> Table:
    table = Table("Q model", "kind", "outcome", "95 % interval", "regret", "pairs in order", "licence", "")
    for name, one in tried.items():
        own = one.licence.choosers["posterior"]
        low, high = own.interval
        pairs = "" if own.pair_accuracy is None else f"{own.pair_accuracy:.3f}"
        verdict = "granted" if one.licence.granted else "none"
        row = (f"{own.outcome:.3f}", f"{low:.3f} to {high:.3f}", f"{own.regret:.3f}", pairs, verdict)
        table.add_row(name, one.manifest.kind, *row, "taken" if one is best else "")
    return table
