"""The manifest of a checkpoint: what the weights are, where Q is read, and each file's sha256.

Reading one verifies every file that loading may read, and refuses what does not match with the reason.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, FiniteFloat, NonNegativeInt, ValidationError

from qguide.qnet.errors import CheckpointError
from qguide.qnet.rendering.version import FIRST_RENDERER_VERSION, RENDERER_VERSION
from qguide.qnet.types import TaskMarker

Interval = tuple[FiniteFloat, FiniteFloat]
Share = Annotated[float, Field(ge=0, le=1)]


class LicenceFigures(BaseModel, frozen=True, extra="forbid"):
    """Figures of one way to choose among the candidates of a decision.

    Attributes:
        outcome: expected outcome of its choices, with its 95 % interval by task.
        regret: the outcome of the best candidate in hindsight, minus that.
        pair_accuracy: share of pairs with different outcomes in the right order; chance is 0.5.
        decisions: number of those at which its choice is known; None for all.
    """

    outcome: FiniteFloat
    interval: Interval
    regret: FiniteFloat
    pair_accuracy: Share | None = None
    pair_interval: Interval | None = None
    decisions: NonNegativeInt | None = None


class LicenceLead(BaseModel, frozen=True, extra="forbid"):
    """Credit of a Q model minus that of one of the agent's own preferences.

    Attributes:
        difference: of the correlations, with its 95 % interval by task.
        steps: at which the agent's preference was recorded.
    """

    difference: FiniteFloat
    interval: Interval
    steps: NonNegativeInt


class JudgedBy(BaseModel, frozen=True, extra="forbid"):
    """Decisions that judged a Q model after its training.

    Attributes:
        name: of their run folder or file, without those above it.
        sha256: of their rows.
        tasks: number of those.
    """

    name: str
    sha256: str
    tasks: NonNegativeInt


class Licence(BaseModel, frozen=True, extra="forbid"):
    """Result of judging a Q model before it guides anybody.

    Attributes:
        granted: its choices are above the agent's own, or the actions that it prefers earned more than was expected.
        reason: the same in words, with figures.
        decisions: held-back decisions whose candidates differ in outcome, of so many `tasks`.
        pairs: of candidates with different outcomes in those decisions.
        choosers: `draw`, `votes` and, where it is known, `greedy` are the agent's own choices; `q`,
            `posterior` and `oracle`.
        own: the best of the agent's own choices; "" where none is judged.
        gain: outcome of the posterior minus that of `own`, with its interval by task: three
            standard errors over `draw`, 95 % over the others.
        ceiling: share of pairs that a Q model which knew the expected outcomes would order as the
            recorded ones do; 1 without noise.
        credit: correlation of the advantages of recorded actions with what was earned beyond
            expectation, with its interval of three standard errors by task and the number of tasks;
            by episode and of episodes, where those were held back.
        leads: the same correlation minus that of `votes`, of `greedy` and of both together
            (`prior`), where they are known.
        missing_decisions: about how many more would show the gain, if it is real.
        judged_by: the decisions, where `qguide licence` or `qguide choose` judged it.
    """

    granted: bool
    reason: str
    decisions: NonNegativeInt = 0
    tasks: NonNegativeInt = 0
    pairs: NonNegativeInt = 0
    choosers: dict[str, LicenceFigures] = Field(default_factory=dict)
    own: str = ""
    gain: FiniteFloat = 0.0
    gain_interval: Interval = (0.0, 0.0)
    ceiling: Share | None = None
    credit: FiniteFloat | None = None
    credit_interval: Interval | None = None
    credit_tasks: NonNegativeInt = 0
    leads: dict[str, LicenceLead] = Field(default_factory=dict)
    missing_decisions: NonNegativeInt | None = None
    judged_by: tuple[JudgedBy, ...] = Field(default=(), exclude_if=lambda judged_by: not judged_by)


MANIFEST = "manifest.json"
_MOST_NAMED = 8
"""Folders that an error names."""
Kind = Literal["policy", "qnet", "implicit-q", "ensemble", "features"]
ReadAt = Literal["", "last_token", "observation", "action_tokens"]
_READ_AT: dict[Kind, tuple[ReadAt, ...]] = {
    "policy": ("",),
    "qnet": ("last_token", "observation"),
    "implicit-q": ("action_tokens",),
    "ensemble": ("", "last_token", "observation", "action_tokens"),
    "features": ("",),
}
LOADABLE = {".json", ".safetensors", ".jinja", ".model", ".txt"}
"""Suffixes of the files that loading may read: each has to have its hash in the manifest."""


class MergedLora(BaseModel, frozen=True, extra="forbid"):
    """LoRA adapters that were trained and then merged into the weights."""

    rank: int
    alpha: int


class OutcomeAtTau(BaseModel, frozen=True, extra="forbid"):
    """Expected outcome of the posterior's choices at one temperature, on held-back groups.

    Attributes:
        tau: temperature of Q; 0 is the argmax of Q.
        outcome: mean over tasks of the chosen candidates' labels.
        standard_error: of the difference to the best temperature's outcome, paired by task.
    """

    tau: float = Field(ge=0, allow_inf_nan=False)
    outcome: float = Field(allow_inf_nan=False)
    standard_error: float = Field(ge=0, allow_inf_nan=False)


class PriorSection(BaseModel, frozen=True, extra="forbid"):
    """Posterior selection that was fitted with a Q model; see `qguide.qnet.decision.selection`.

    Attributes:
        tau: temperature of Q beside the log prior; 0 is the argmax of Q.
        by: the prior's source for which tau was fitted.
        greedy_weight: added to the log prior of the policy's greedy reply, where it is drawn.
        curve: the outcome at each temperature that was tried, the lowest first.
        decisions: number of held-back decisions it was fitted on.
        tasks: number of their tasks.
    """

    tau: float = Field(ge=0, allow_inf_nan=False)
    by: Literal["votes", "likelihood"] = "votes"
    greedy_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False, exclude_if=lambda weight: not weight)
    curve: tuple[OutcomeAtTau, ...] = ()
    decisions: int = Field(default=0, ge=0)
    tasks: int = Field(default=0, ge=0)


class Manifest(BaseModel, frozen=True, extra="forbid"):
    """Manifest of a checkpoint.

    Attributes:
        name: the name it is served under.
        thinking: whether thoughts stay in the actions of a history, as the chat template has it;
            empty in checkpoints of the first renderer.
        read_at: where Q is read. A QNet's at the action's last token, or after the observation that followed the
            action, where the next reply would begin; an implicit Q's at all tokens of the action; an ensemble's where
            its first network's is; a policy leaves it empty, and so does a Q model without a network.
        task_markers: how the environment's first user message states the task; a policy's.
        target: what Q was regressed on: q, avg or reward.
        label_range: lowest and highest label seen in training.
        trunk: hub name and commit of the model that training started from; empty for a folder.
        trunk_sha256: hash of the weights that the trunk started from.
        data_sha256: hash of the training rows.
        lora: the merged adapters, if not all weights were trained; absent otherwise.
        licence: its choices beside the agent's own; absent where nothing judged them.
        unjudged: why nothing judged them, and what would; "" if unknown.
        metrics: what training measured.
        prior: how to choose by Q and the policy's prior; absent: by Q alone.
        versions: of the packages that wrote it.
        files: sha256 of each file in the directory; an ensemble's are those of its members, too.
    """

    format_version: Literal[1] = 1
    kind: Kind
    name: str
    renderer_version: str = RENDERER_VERSION
    environment: str = ""
    thinking: Literal["", "kept", "dropped"] = ""
    task_markers: tuple[TaskMarker, ...] = ()
    read_at: ReadAt = ""
    target: str = ""
    label_range: tuple[float, float] | None = None
    trunk: str = ""
    trunk_sha256: str = ""
    data_sha256: str = ""
    # Left out where it is None, so that earlier versions read the manifest, too.
    lora: MergedLora | None = Field(default=None, exclude_if=lambda lora: lora is None)
    licence: Licence | None = Field(default=None, exclude_if=lambda licence: licence is None)
    unjudged: str = Field(default="", exclude_if=lambda reason: not reason)
    metrics: dict[str, float] = Field(default_factory=dict)
    prior: PriorSection | None = Field(default=None, exclude_if=lambda prior: prior is None)
    versions: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)

    @property
    def remark(self) -> str:
        """Reason why a Q model has no licence, to be read after its name; "" with one."""
        if self.licence is None:
            return f"was not judged: {self.unjudged or 'nothing shows that its choices beat the policy'}"
        return "" if self.licence.granted else f"has no licence: {self.licence.reason}"

    @property
    def reads_observation(self) -> bool:
        """True if Q is read after the observation that followed the action."""
        return self.read_at == "observation"

    @property
    def may_read_observation(self) -> bool:
        """True if it takes observations; without a network it values the state that they lead to."""
        return self.reads_observation or not self.read_at


_PAIRS: Final = {
    "sibling_accuracy": "sibling_pairs",
    "sibling_accuracy_by_gap": "sibling_pairs",
    "pair_accuracy": "pairs",
    "pair_accuracy_by_gap": "pairs",
    "valid_above_invalid": "validity_pairs",
    "preference_accuracy": "preference_pairs",
    "preference_accuracy_other": "preference_pairs_other",
    "pairs_in_order": "pairs",
}
"""Number of pairs of each share of pairs in order, by the names of the figures."""


def figure_text(name: str, figures: Mapping[str, Any]) -> str:
    """One of several figures as text; a share of pairs in order with chance, and the pairs it is of."""
    figure = figures[name]
    shown = f"{figure:,.4g}" if isinstance(figure, float) else str(figure)
    if name not in _PAIRS:
        return shown
    of = ""
    if pairs := figures.get(_PAIRS[name]):
        of = f"; {pairs:,.0f} pairs"
    elif decisions := figures.get("decisions"):
        of = f"; pairs of {decisions:,.0f} decisions"
    return f"{shown} (chance 0.5{of})"


def sha256_of(path: Path) -> str:
    """The file's sha256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(directory: Path, manifest: Manifest, *, packages: Iterable[str]) -> Manifest:
    """Write the manifest, with the hashes of the folder's files and the versions of these packages."""
    files = sorted(p for p in directory.rglob("*") if p.is_file() and p != directory / MANIFEST)
    complete = manifest.model_copy(
        update={
            "versions": {package: version(package) for package in packages},
            "files": {file.relative_to(directory).as_posix(): sha256_of(file) for file in files},
        }
    )
    (directory / MANIFEST).write_text(complete.model_dump_json(indent=2) + "\n")
    return complete


def replace_manifest(directory: Path, manifest: Manifest) -> None:
    """Write a manifest over a checkpoint's own, all of it or nothing; no field is added that is not set."""
    text = json.dumps(manifest.model_dump(mode="json", exclude_unset=True), indent=2)
    unfinished = directory / f"{MANIFEST}.tmp"
    unfinished.write_text(text + "\n", encoding="utf-8")
    unfinished.replace(directory / MANIFEST)


def require_checkpoint(directory: Path) -> None:
    """Refuse a folder that is not there, and tell what is, or one that holds no model."""
    if (directory / "config.json").is_file():
        return
    if directory.exists():
        raise CheckpointError(f"{directory} holds no config.json; name a checkpoint folder")
    there = next(parent for parent in directory.absolute().parents if parent.is_dir())
    beside = sorted(folder.name for folder in there.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    more = f" and {len(beside) - _MOST_NAMED} more" if len(beside) > _MOST_NAMED else ""
    folders = f"{', '.join(beside[:_MOST_NAMED])}{more}" if beside else "no folder"
    raise CheckpointError(f"{directory} does not exist; {there} holds {folders}; name a checkpoint folder")


def read_manifest(directory: Path) -> Manifest | None:
    """The verified manifest of a checkpoint, or None where the folder has none."""
    require_checkpoint(directory)
    path = directory / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise CheckpointError(f"{path} is not a manifest this version reads: {error}") from error
    require_renderer(directory, manifest)
    _verify_files(directory, manifest)
    return manifest


def require_renderer(directory: Path, manifest: Manifest) -> None:
    """Refuse a model that was trained with a renderer of another version."""
    if manifest.renderer_version not in (RENDERER_VERSION, FIRST_RENDERER_VERSION):
        raise other_renderer(directory, manifest)


def require_read_at(directory: Path, manifest: Manifest) -> None:
    """Refuse a Q model that was trained to be read at other tokens than it is here."""
    known = _READ_AT[manifest.kind]
    if manifest.read_at not in known:
        raise CheckpointError(
            f"{directory}: read_at is {manifest.read_at!r}; Q of a {manifest.kind} is read at "
            f"{' or '.join(map(repr, known))}; train it again"
        )


def is_feature_q(directory: Path) -> bool:
    """True for the folder of a Q model without a network, by its manifest's kind."""
    try:
        return bool(json.loads((directory / MANIFEST).read_bytes())["kind"] == "features")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def content_sha256(directory: Path, manifest: Manifest) -> str:
    """Hash that identifies a checkpoint: its manifest's file, or else what stands in for one."""
    path = directory / MANIFEST
    if path.is_file():
        return sha256_of(path)
    return hashlib.sha256(manifest.model_dump_json().encode()).hexdigest()


def _verify_files(directory: Path, manifest: Manifest) -> None:
    loadable = {p.relative_to(directory).as_posix() for p in directory.rglob("*") if _is_loadable(p)}
    if unlisted := sorted(loadable - {MANIFEST} - set(manifest.files)):
        raise CheckpointError(f"{directory}: {unlisted[0]} has no sha256 in {MANIFEST}; remove it or train again")
    for name, expected in manifest.files.items():
        path = directory / name
        if not _is_inside(name, manifest.kind) or not path.is_file():
            raise CheckpointError(f"{directory}: {name} is in the manifest but not in the folder")
        if sha256_of(path) != expected:
            raise CheckpointError(f"{directory}: {name} differs from its sha256 in {MANIFEST}; copy it again")


def _is_inside(name: str, kind: Kind) -> bool:
    """True for a file of the folder itself, or of a member's folder in an ensemble."""
    parts = Path(name).parts
    return len(parts) in ((1, 2) if kind == "ensemble" else (1,)) and not {"..", "/"} & set(parts)


def other_renderer(directory: Path, manifest: Manifest) -> CheckpointError:
    """The refusal of a checkpoint whose renderer made other tokens than this version's."""
    return CheckpointError(
        f"{directory} was trained with renderer {manifest.renderer_version}; this is renderer "
        f"{RENDERER_VERSION}, which makes other tokens; train it again"
    )


def _is_loadable(path: Path) -> bool:
    """True if loading may read it: a model file, or a link to a folder that may hold some."""
    return path.suffix in LOADABLE or (path.is_symlink() and path.is_dir())
