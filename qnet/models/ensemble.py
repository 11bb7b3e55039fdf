"""Writer of an ensemble: one checkpoint whose Q is the mean over several Q models.

    Q(s, a) = 1/K * sum_k c_k Q_k(s, a),   c_k = spread_0 / spread_k

where the spread of a member is that of its values between the candidates of a state, on held-back
decision groups. So members of several kinds, or of several labels, weigh alike, and the unit is the
first one's; members that were trained alike need no groups, and all scales are 1.

Each member keeps its trunk, so an ensemble costs their sum to serve. The folder holds a
`config.json` with their number and scales, each member's whole checkpoint in `member-0`, `member-1`,
… and a manifest with the hashes of all these files. Until `qguide licence` judges the mean, it has no more than
its members: their licence if all of them have one, and the states that all of their domains have.
"""

import shutil
from collections.abc import Sequence
from itertools import count, takewhile
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from qguide.qnet.errors import CheckpointError
from qguide.qnet.features.domain import AnyDomain, Domain, SharedDomain
from qguide.qnet.models.hub import model_folder
from qguide.qnet.models.manifest import MANIFEST, Licence, Manifest, PriorSection, read_manifest, write_manifest

CONFIG = "config.json"
MEMBERS = ("qnet", "implicit-q", "features")
"""Kinds that an ensemble may have."""


class EnsembleConfig(BaseModel, frozen=True, extra="forbid"):
    """Configuration of an ensemble.

    Attributes:
        scales: factors of their values; empty: 1 each.
    """

    members: int = Field(ge=2)
    scales: tuple[Annotated[FiniteFloat, Field(gt=0)], ...] = ()


def member_folders(directory: Path) -> list[Path]:
    """The members' folders of an ensemble, in order."""
    return list(takewhile(Path.is_dir, (directory / f"member-{number}" for number in count())))


def scales_of(directory: Path, members: int) -> tuple[float, ...]:
    """The factor of each member's values."""
    try:
        config = EnsembleConfig.model_validate_json((directory / CONFIG).read_bytes())
    except ValidationError as error:
        raise CheckpointError(f"{directory / CONFIG} is no ensemble's: {error}; combine its members again") from error
    scales = config.scales or (1.0,) * members
    if not config.members == len(scales) == members:
        raise CheckpointError(
            f"{directory} has {members} members, but its {CONFIG} has {config.members} and {len(scales)} scales; "
            "combine them again"
        )
    return scales


def load_domain(directory: Path) -> AnyDomain | None:
    """The domain of a checkpoint: its own, or what its members' have in common; None if none is known."""
    if (own := Domain.load(directory)) is not None:
        return own
    found = [domain for folder in member_folders(directory) if (domain := Domain.load(folder))]
    return SharedDomain(found) if found else None


def save_ensemble(
    directory: Path, members: Sequence[Path], *, name: str, spreads: Sequence[float] | None = None
) -> Manifest:
    """Copy Q models into one checkpoint that scores by their mean.

    Args:
        directory: the folder to write; it must not exist.
        members: at least two: QNets, implicit Qs and Q models without a network. Networks read all
            before the observation, or all after it.
        spreads: of each member's values between the candidates of a state; None takes the values as
            they are, of members of one kind that were trained on one kind of label.
    """
    if len(members) < 2:
        raise CheckpointError(f"an ensemble has at least two members, not {len(members)}")
    if directory.exists():
        raise CheckpointError(f"{directory} exists; name a folder that does not")
    manifests = [_member_manifest(model_folder(member)) for member in members]
    _require_one_place(members, manifests)
    if spreads is None:
        _require_alike(members, manifests)
    scales = [1.0] * len(members) if spreads is None else _scales(members, spreads)
    unfinished = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(unfinished, ignore_errors=True)
    for number, (member, manifest) in enumerate(zip(members, manifests, strict=True)):
        folder = unfinished / f"member-{number}"
        folder.mkdir(parents=True)
        for file in (MANIFEST, *manifest.files):
            shutil.copyfile(model_folder(member) / file, folder / file)
    config = EnsembleConfig(members=len(members), scales=() if spreads is None else tuple(scales))
    (unfinished / CONFIG).write_text(config.model_dump_json(exclude_defaults=True) + "\n")
    manifest = _manifest_of(manifests, scales, name)
    networks = any(member.kind != "features" for member in manifests)
    complete = write_manifest(unfinished, manifest, packages=("torch", "transformers") if networks else ("numpy",))
    unfinished.rename(directory)
    return complete


def _member_manifest(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    if manifest is None or manifest.kind not in MEMBERS:
        found = f"of kind {manifest.kind}" if manifest else f"without a {MANIFEST}"
        raise CheckpointError(f"{folder} is {found}; a member is a QNet, an implicit Q or without a network")
    return manifest


def _require_one_place(members: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    """Refuse networks of which some read the observation and some cannot."""
    networks = [(member, own) for member, own in zip(members, manifests, strict=True) if own.read_at]
    for member, manifest in networks:
        first, theirs = networks[0]
        if manifest.reads_observation != theirs.reads_observation:
            raise CheckpointError(
                f"{member} has read_at {manifest.read_at!r}, but {first} has {theirs.read_at!r}, and no request suits "
                "both; combine Q models that are read before the observation, or after it"
            )


def _require_alike(members: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    """Refuse a mean of values that do not mean the same."""
    for member, manifest in zip(members, manifests, strict=True):
        for field in ("kind", "target"):
            ours, first = getattr(manifest, field), getattr(manifests[0], field)
            if ours != first:
                raise CheckpointError(
                    f"{member} has {field} {ours!r}, but {members[0]} has {first!r}, so their values are of different "
                    "scales; name decision groups of tasks that none was trained on (--groups), which tell these"
                )


def _scales(members: Sequence[Path], spreads: Sequence[float]) -> list[float]:
    for member, spread in zip(members, spreads, strict=True):
        if not (isfinite(spread) and spread > 0):
            raise CheckpointError(
                f"{member} gives all candidates of each held-back state one value, so it has no scale; leave it out, "
                "or name groups of the tasks that it is for"
            )
    return [spreads[0] / spread for spread in spreads]


def _manifest_of(members: Sequence[Manifest], scales: Sequence[float], name: str) -> Manifest:
    first = members[0]
    alike = all((one.kind, one.target) == (first.kind, first.target) for one in members)
    ranges = [member.label_range for member in members if member.label_range] if set(scales) == {1.0} else []
    lows, highs = zip(*ranges, strict=True) if ranges else ((), ())
    same_environment = all(member.environment == first.environment for member in members)
    return Manifest(
        kind="ensemble",
        name=name,
        environment=first.environment if same_environment else "",
        read_at=next((member.read_at for member in members if member.read_at), ""),
        target=first.target if alike else "+".join(dict.fromkeys(member.target for member in members)),
        label_range=(min(lows), max(highs)) if ranges else None,
        prior=_prior_of(members, scales),
        metrics={} if set(scales) == {1.0} else {f"scale_of_{i}": scale for i, scale in enumerate(scales)},
        **_verdict_on(members),
    )


def _prior_of(members: Sequence[Manifest], scales: Sequence[float]) -> PriorSection | None:
    """The prior by which the mean of the members' scaled posteriors is the ensemble's.

    A member without one chooses by Q alone, which is a temperature of 0.
    """
    priors = [(scale, one.prior) for scale, one in zip(scales, members, strict=True) if one.prior]
    sources = {prior.by for _, prior in priors}
    if len(sources) != 1:
        return None
    tau = sum(scale * prior.tau for scale, prior in priors) / len(members)
    weight = sum(scale * prior.tau * prior.greedy_weight for scale, prior in priors) / len(members)
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
