"""Loading of a checkpoint as far as it needs no torch: the tokenizer, and refusals of files."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Literal

from qguide.qnet.errors import CheckpointError, QGuideError
from qguide.qnet.models.hub import hub_name, model_folder
from qguide.qnet.models.manifest import Manifest, other_renderer
from qguide.qnet.models.tokenizer_check import check_tokenizer
from qguide.qnet.rendering.renderer import Renderer
from qguide.qnet.rendering.version import FIRST_RENDERER_VERSION


def embedded_path(kind: Literal["policy", "qnet"]) -> Path:
    """Folder of a model that ships with QGuide."""
    return Path(str(resources.files("qguide.qnet") / "embedded" / kind))


def load_renderer(directory: Path) -> Renderer:
    """The renderer of a checkpoint's tokenizer; the hub's are tried in a child process first."""
    from transformers import AutoTokenizer  # seconds, which a server without a tokenizer saves

    folder = model_folder(directory)
    if hub_name(folder):
        check_tokenizer(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return Renderer(tokenizer)


def load_fitting_renderer(directory: Path, vocab_size: int, manifest: Manifest | None) -> Renderer:
    """The renderer of a checkpoint whose model knows so many tokens."""
    with broken_refused(f"{directory}: the tokenizer"):
        renderer = load_renderer(directory)
    if len(renderer.tokenizer) > vocab_size:
        raise CheckpointError(
            f"{directory}: the tokenizer makes {len(renderer.tokenizer):,} different tokens; the "
            f"model knows {vocab_size:,}; save it with the tokenizer it was trained with"
        )
    if (
        manifest is not None
        and manifest.renderer_version == FIRST_RENDERER_VERSION
        and not renderer.renders_as_version_1
    ):
        raise other_renderer(directory, manifest)
    return renderer


@contextmanager
def broken_refused(what: str) -> Iterator[None]:
    """Say what it is that does not load; a broken file can fail in any way."""
    try:
        yield
    except QGuideError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{what} does not load ({reason}); copy it again or train it again") from error


def require_shapes(
    directory: Path, found: Mapping[str, tuple[int, ...]], described: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuse weights whose names or shapes are not those that config.json describes."""
    both = found.keys() & described.keys()
    require_fit(
        directory,
        missing=described.keys() - found.keys(),
        mismatched=[(name, found[name], described[name]) for name in both if found[name] != described[name]],
        unused=found.keys() - described.keys(),
    )


def require_fit(
    directory: Path, *, missing: Collection[str], mismatched: Collection[object], unused: Collection[str] = ()
) -> None:
    """Refuse weights of another model than config.json describes."""
    if missing or mismatched or unused:
        raise CheckpointError(
            f"{directory}: weights do not fit config.json (missing {sorted(missing)[:3]}, "
            f"mismatched {sorted(mismatched, key=str)[:3]}, unused {sorted(unused)[:3]}); "
            "copy both from the same training"
        )
