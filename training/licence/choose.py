"""Choose among Q models by their regret on held-back decisions, and write the best one.

    qguide choose runs/learned/checkpoint runs/network/checkpoint --groups runs/held_back --output runs/chosen

reads checkpoints of any kinds, and decision groups, or labelled trees of recordings, of tasks that
none of them was trained on; their sum is one more candidate. Each is judged as it would be served.
The one of the lowest regret is written, with a licence by those decisions and the regret of all in
its manifest. The best of several is partly lucky, so its licence takes a clearer gain than that of
one alone, and tells the gain without that luck. It plays nothing; a killed run starts over.
"""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from pydantic import Field, model_validator
from rich.console import Console
from rich.table import Table

from qguide.qnet.errors import CheckpointError, ConfigError, HistoryTooLongError
from qguide.qnet.models.ensemble import MEMBERS, save_ensemble
from qguide.qnet.models.manifest import Licence, Manifest, PriorSection, read_manifest, replace_manifest
from qguide.training.data.decision_groups import GroupLabels
from qguide.training.data.runs import open_run, rows_at_once
from qguide.training.licence.assessment import ScoredQModel, regret_of
from qguide.training.licence.held_back import HeldBack
from qguide.training.licence.verdict import show_licence
from qguide.training.options import JobOptions
from qguide.training.rollouts.models import INFERENCE_MAY_CHANGE, Inference, model_folder, sha256_of_q_model

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
class Contender:
    """A Q model on held-back decisions.

    Attributes:
        scored: its values of the decisions, and the prior beside which it chooses.
        prior, licence: as it would be served, if there were no other.
    """

    name: str
    folder: Path
    manifest: Manifest
    scored: ScoredQModel
    prior: PriorSection | None
    licence: Licence

    @classmethod
    def of(cls, q_model: str, held_back: HeldBack, config: ChooseConfig) -> Self:
        """Score the decisions, and judge."""
        folder = model_folder(q_model, "qnet")
        if (manifest := read_manifest(folder)) is None:
            raise CheckpointError(f"{folder} has no manifest; it was not trained here")
        scored = held_back.scored(q_model, config.inference, config.group_labels, prior=manifest.prior)
        assessed = held_back.assess(scored)
        if assessed.licence is None or not assessed.licence.choosers:
            names = ", ".join(one.name for one in held_back.judged_by)
            raise ConfigError(f"no decision of {names} differs in outcome, so none judges; play more tasks")
        licence = _kept(manifest.licence, assessed.licence)
        return cls(manifest.name, folder, manifest, scored, assessed.prior, licence)

    @property
    def regret(self) -> float:
        """Outcome of the best candidates, minus that of its choices."""
        return regret_of(self.licence)


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
        held_back = HeldBack.read(config.groups, config.labels)
        tried = _contenders(config, held_back, run.path / _SUM, console)
        regrets = {name: one.regret for name, one in tried.items()}
        best = min(regrets, key=lambda name: regrets[name])
        licence = held_back.licence_of_choice({name: one.scored for name, one in tried.items()}, best)
        taken = replace(tried[best], licence=_kept(tried[best].manifest.licence, licence))
        saved = _write(taken, run.checkpoint, regrets)
        shutil.rmtree(run.path / _SUM, ignore_errors=True)
        with rows_at_once(run.metrics) as metrics:
            metrics.write({name: one.licence.model_dump(mode="json") for name, one in tried.items()})
    console.print(_table(tried, best, granted=taken.licence.granted))
    console.print(f"{best} → {run.checkpoint}", markup=False, soft_wrap=True)
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
    summed = [one for one in found if one.manifest.kind in MEMBERS and one.scored.spread > 0]
    if config.sums and len(summed) > 1:
        try:
            save_ensemble(
                sum_folder, [one.folder for one in summed], name=_SUM, spreads=[one.scored.spread for one in summed]
            )
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


def _table(tried: dict[str, Contender], best: str, *, granted: bool) -> Table:
    table = Table("Q model", "kind", "outcome", "95 % interval", "regret", "pairs in order", "licence", "")
    for name, one in tried.items():
        own = one.licence.choosers["posterior"]
        low, high = own.interval
        pairs = "" if own.pair_accuracy is None else f"{own.pair_accuracy:.3f}"
        verdict = "granted" if (granted if name == best else one.licence.granted) else "none"
        row = (f"{own.outcome:.3f}", f"{low:.3f} to {high:.3f}", f"{own.regret:.3f}", pairs, verdict)
        table.add_row(name, one.manifest.kind, *row, "taken" if name == best else "")
    return table
