"""Commands for the checkpoint of a Q model."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from qguide.commands.errors import shown_errors

if TYPE_CHECKING:
    from qguide.qnet.models.manifest import Manifest


def domain(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a Q model.")],
    source: Annotated[
        list[Path] | None, typer.Argument(help="Recordings or trajectories like those that it was trained on.")
    ] = None,
    least: Annotated[
        float | None,
        typer.Option(min=0.01, max=1, help="Limit of unknown and of missing words, if states keep a smaller."),
    ] = None,
    check: Annotated[
        list[Path] | None, typer.Option(help="Recordings of which to say how many states are outside.")
    ] = None,
) -> None:
    """Give a checkpoint the domain of recorded states, or check recorded states against it."""
    with shown_errors():
        from qguide.qnet.errors import ConfigError
        from qguide.qnet.models.ensemble import load_domain
        from qguide.training.learning.sources import read_states
        from qguide.training.licence.domain import LEAST_LIMIT, fit_domain, outside_of, put_domain, salt_of
        from qguide.training.licence.verdict import domain_line, outside_line

        if least is not None and not source:
            raise ConfigError("--least is of a domain that is fitted; name the recordings, too")
        manifest = _manifest(checkpoint)
        if source:
            states, salt = read_states(source), salt_of(manifest)
            fitted = fit_domain(states, salt=salt, least=least or LEAST_LIMIT)
            put_domain(checkpoint, manifest, fitted)
        found = load_domain(checkpoint)
        console = Console()
        console.print(domain_line(found), markup=False, soft_wrap=True)
        for path in check or ():
            if found is not None:
                shown = outside_line(outside_of(found, read_states([path])))
                console.print(f"{path}: {shown}", markup=False, soft_wrap=True)


def inspect(model: Annotated[str, typer.Argument(help="A checkpoint's folder, or embedded.")]) -> None:
    """Show the manifest of a checkpoint: origin, licence, and temperature of its posterior."""
    with shown_errors():
        from qguide.qnet.models.hub import refuse_run_folder
        from qguide.training.licence.verdict import show_manifest

        folder = _folder(Path(model))
        refuse_run_folder(folder)
        show_manifest(_manifest(folder), Console())


def licence(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a Q model.")],
    groups: Annotated[list[Path], typer.Argument(help="Decision groups of tasks that it was not trained on.")],
) -> None:
    """Judge a checkpoint on decision groups, and write licence and prior into its manifest.

    The tasks have to be others than it was trained on; nothing can check that afterwards.
    """
    with shown_errors():
        from qguide.qnet.models.manifest import replace_manifest
        from qguide.training.data.decision_groups import GroupLabels
        from qguide.training.licence.held_back import HeldBack
        from qguide.training.licence.verdict import show_licence
        from qguide.training.rollouts.models import Inference

        manifest = _manifest(checkpoint)
        held_back = HeldBack.read(groups)
        assessed = held_back.assess(held_back.scored(str(checkpoint), Inference(), GroupLabels()))
        verdict = {"prior": assessed.prior, "licence": assessed.licence, "unjudged": ""}
        judged = manifest.model_copy(update=verdict)
        replace_manifest(checkpoint, judged)
        show_licence(judged, Console())


def export_trunk(
    checkpoint: Annotated[Path, typer.Argument(help="A QNet checkpoint folder, or embedded.")],
    output: Annotated[Path, typer.Argument(help="The folder to write; it must not exist.")],
) -> None:
    """Write a QNet's trunk for vLLM; prints the model name that vLLM must serve it under."""
    from qguide.qnet.models.trunk_export import export_trunk as write

    with shown_errors(config_status=1):
        name = write(_folder(checkpoint), output)
    typer.echo(name)


def ensemble(
    checkpoints: Annotated[list[Path], typer.Argument(help="Q model folders, or embedded.")],
    output: Annotated[Path, typer.Option(help="The folder to write; it must not exist.")],
    name: Annotated[str, typer.Option(help="The name it is served under.")] = "ensemble",
    groups: Annotated[
        list[Path] | None,
        typer.Option(help="Decision groups that scale Q models of several kinds, of tasks that none was trained on."),
    ] = None,
) -> None:
    """Combine Q models into one checkpoint, whose Q is their mean."""
    with shown_errors(config_status=1):
        from qguide.qnet.models.ensemble import save_ensemble

        members = [_folder(checkpoint) for checkpoint in checkpoints]
        spreads = _spreads(members, groups) if groups else None
        save_ensemble(output, members, name=name, spreads=spreads)
    typer.echo(output)


def progress(
    child: Annotated[Path, typer.Argument(help="A policy after training by outcomes.")],
    parent: Annotated[Path, typer.Argument(help="The same policy before it.")],
    output: Annotated[Path, typer.Option(help="The folder to write; it must not exist.")],
    name: Annotated[str, typer.Option(help="The name it is served under.")] = "progress",
    beta: Annotated[float, typer.Option(help="Factor of the log ratio.", min=1e-6)] = 0.1,
) -> None:
    """Make an implicit Q of two checkpoints of one policy: Q is beta log (child / parent)."""
    from qguide.qnet.errors import CheckpointError
    from qguide.qnet.models.checkpoint import save_checkpoint
    from qguide.qnet.models.hub import model_folder
    from qguide.qnet.models.implicit_q import ImplicitQ
    from qguide.qnet.models.loading import load_renderer
    from qguide.qnet.models.manifest import Manifest

    with shown_errors(config_status=1):
        if output.exists():
            raise CheckpointError(f"{output} exists; name a folder that does not")
        for folder in (child, parent):
            if not folder.is_dir():
                raise CheckpointError(f"there is no folder {folder}; name a checkpoint's")
        folders = model_folder(child), model_folder(parent)
        tokenizer, other = (load_renderer(folder).tokenizer for folder in folders)
        if tokenizer.get_vocab() != other.get_vocab():
            raise CheckpointError(f"{child} and {parent} have different tokens; name two checkpoints of one policy")
        model = ImplicitQ.from_policies(*folders, beta=beta)
        manifest = Manifest(kind="implicit-q", name=name, read_at="action_tokens", target="progress", unjudged=_PAIR)
        save_checkpoint(output, model=model, tokenizer=tokenizer, manifest=manifest)
    typer.echo(output)
    typer.echo(f"licence: not judged; {_PAIR}. It has no domain either: `qguide domain` gives it one", err=True)


def export_model(
    checkpoint: Annotated[Path, typer.Argument(help="A QNet checkpoint folder, or embedded.")],
    output: Annotated[Path, typer.Option(help="The folder to write; it must not exist.")],
) -> None:
    """Write a QNet for a stock vLLM, transformers and others; prints the folder's format.

    An MLP head makes a Sentence-Transformers folder, a linear one a sequence classifier.
    """
    from qguide.qnet.models.model_export import export_model as write

    with shown_errors(config_status=1):
        written = write(_folder(checkpoint), output)
    typer.echo(written)


_PAIR = "`qguide licence` judges its choices on decision groups"


def _spreads(members: Sequence[Path], groups: Sequence[Path]) -> list[float]:
    """The spread of each member's values between the candidates of a state, on decision groups."""
    from qguide.training.data.decision_groups import GroupLabels
    from qguide.training.licence.held_back import HeldBack
    from qguide.training.rollouts.models import Inference

    held_back = HeldBack.read(groups)
    return [held_back.scored(str(member), Inference(), GroupLabels()).spread for member in members]


def _folder(model: Path) -> Path:
    """The folder of a Q model, which may be the one that ships with QGuide."""
    from qguide.qnet.models.loading import embedded_path

    return embedded_path("qnet") if str(model) == "embedded" else model


def _manifest(folder: Path) -> "Manifest":
    from qguide.qnet.errors import CheckpointError
    from qguide.qnet.models.manifest import read_manifest

    if (manifest := read_manifest(folder)) is None:
        raise CheckpointError(f"{folder} has no manifest; it was not trained here")
    return manifest
