"""Writer of an ensemble: one checkpoint whose Q is the mean over several Q models.

Each member keeps its trunk, so an ensemble costs their sum to serve. The folder holds a
`config.json` with their number, each member's whole checkpoint in `member-0`, `member-1`, … and a
manifest with the hashes of all these files. Until `qguide licence` judges the mean, it has no more than
its members: their licence if all of them have one, and the states that all of their domains have.
"""

import json
import shutil
from collections.abc import Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from qguide.qnet.errors import CheckpointError
from qguide.qnet.features.domain import AnyDomain, Domain, SharedDomain
from qguide.qnet.models.hub import model_folder
from qguide.qnet.models.manifest import MANIFEST, Licence, Manifest, PriorSection, read_manifest, write_manifest

CONFIG = "config.json"


def member_folders(directory: Path) -> list[Path]:
    """The members' folders of an ensemble, in order."""
    return list(takewhile(Path.is_dir, (directory / f"member-{number}" for number in count())))


def load_domain(directory: Path) -> AnyDomain | None:
    """The domain of a checkpoint: its own, or what its members' have in common; None if none is known."""
    if (own := Domain.load(directory)) is not None:
        return own
    found = [domain for folder in member_folders(directory) if (domain := Domain.load(folder))]
    return SharedDomain(found) if found else None


def save_ensemble(directory: Path, members: Sequence[Path], *, name: str) -> Manifest:
    """Copy Q models into one checkpoint that scores by their mean.

    Args:
        directory: the folder to write; it must not exist.
        members: at least two QNets, or implicit Qs, that read Q at the same place and were trained
            on the same kind of label.
    """
    if len(members) < 2:
        raise CheckpointError(f"an ensemble has at least two members, not {len(members)}")
    if directory.exists():
        raise CheckpointError(f"{directory} exists; name a folder that does not")
    manifests = [_member_manifest(model_folder(member)) for member in members]
    _require_alike(members, manifests)
    unfinished = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(unfinished, ignore_errors=True)
    for number, (member, manifest) in enumerate(zip(members, manifests, strict=True)):
        folder = unfinished / f"member-{number}"
        folder.mkdir(parents=True)
        for file in (MANIFEST, *manifest.files):
            shutil.copyfile(model_folder(member) / file, folder / file)
    (unfinished / CONFIG).write_text(json.dumps({"members": len(members)}) + "\n")
    complete = write_manifest(unfinished, _manifest_of(manifests, name), packages=("torch", "transformers"))
    unfinished.rename(directory)
    return complete


def _member_manifest(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    if manifest is None or manifest.kind not in ("qnet", "implicit-q"):
        found = f"of kind {manifest.kind}" if manifest else f"without a {MANIFEST}"
        raise CheckpointError(f"{folder} is {found}; a member is a QNet or an implicit Q")
    return manifest


def _require_alike(members: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    """Refuse a mean of values that do not mean the same."""
    for member, manifest in zip(members, manifests, strict=True):
        for field in ("kind", "read_at", "target"):
            ours, first = getattr(manifest, field), getattr(manifests[0], field)
            if ours != first:
                raise CheckpointError(
                    f"{member} has {field} {ours!r}, but {members[0]} has {first!r}; the mean of "
                    "their values would mean nothing: combine Q models that were trained alike"
                )


def _manifest_of(members: Sequence[Manifest], name: str) -> Manifest:
    first = members[0]
    ranges = [member.label_range for member in members if member.label_range]
    lows, highs = zip(*ranges, strict=True) if ranges else ((), ())
    same_environment = all(member.environment == first.environment for member in members)
    return Manifest(
        kind="ensemble",
        name=name,
        environment=first.environment if same_environment else "",
        read_at=first.read_at,
        target=first.target,
        label_range=(min(lows), max(highs)) if ranges else None,
        prior=_prior_of(members),
        **_verdict_on(members),
    )


def _prior_of(members: Sequence[Manifest]) -> PriorSection | None:
    """The prior by which the mean of the members' posteriors is the ensemble's.

    A member without one chooses by Q alone, which is a temperature of 0.
    """
    priors = [member.prior for member in members if member.prior]
    sources = {prior.by for prior in priors}
    if len(sources) != 1:
        return None
    tau = sum(prior.tau for prior in priors) / len(members)
    weight = sum(prior.tau * prior.greedy_weight for prior in priors) / len(members)
    return PriorSection(tau=tau, by=sources.pop(), greedy_weight=weight / tau if tau else 0.0)


def _verdict_on(members: Sequence[Manifest]) -> dict[str, Any]:
    """The sections of a manifest that say how far the members' licences cover their mean."""
    verdicts = [(f"member {number} ({one.name})", one.licence) for number, one in enumerate(members)]
    refused = [f"its {name} has none: {own.reason}" for name, own in verdicts if own and not own.granted]
    unjudged = [f"its {name} was not judged" for name, own in verdicts if own is None]
    if not (refused or unjudged) and len({one.prior.by for one in members if one.prior}) > 1:
        unjudged = ["its members were judged beside different priors"]
    if refused:
        return {"licence": Licence(granted=False, reason=refused[0])}
    if unjudged:
        return {"unjudged": unjudged[0]}
    return {"licence": Licence(granted=True, reason=f"each of its {len(members)} members has one")}
