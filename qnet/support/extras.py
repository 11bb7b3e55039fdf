"""Packages that a plain `pip install .` leaves out, and the extras that bring them."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

from qguide.qnet.errors import ConfigError

LEARN: Final = "learn"
REMOTE: Final = "remote"
MODELS: Final = "models"
REPORT: Final = "report"
MCP: Final = "mcp"
TRAIN: Final = "train"

PACKAGES: Final = {
    LEARN: frozenset({"numpy", "safetensors", "scipy"}),
    REMOTE: frozenset({"huggingface_hub", "jinja2", "numpy", "safetensors", "tokenizers", "transformers"}),
    MODELS: frozenset({"torch"}),
    REPORT: frozenset({"jinja2", "matplotlib"}),
    MCP: frozenset({"mcp"}),
    TRAIN: frozenset({"accelerate", "bm25s", "peft", "rapidfuzz"}),
}
"""Packages of each extra itself: `models` and `report` bring those of `learn`, `train` all."""


def install(extra: str) -> str:
    """The command that installs an extra; no package is published, so it runs in a clone."""
    return f"pip install '.[{extra}]' in your clone of QGuide"


def left_out(error: ModuleNotFoundError) -> str | None:
    """The missing package if an extra brings it; None for any other."""
    package = (error.name or "").partition(".")[0]
    return package if any(package in packages for packages in PACKAGES.values()) else None


@contextmanager
def extra_named(need: str, extra: str, *, otherwise: str = "") -> Iterator[None]:
    """Name the extra to install where an import fails for the lack of it.

    Args:
        need: beginning of the message: what needs the package.
        otherwise: end of the message: another remedy.

    Raises:
        ConfigError: a package of an extra is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = left_out(error)
        if package is None:
            raise
        raise ConfigError(_missing(need, package, extra) + otherwise) from error


def require_extra(need: str, extra: str) -> None:
    """Refuse what would find a package of an extra missing only later.

    Raises:
        ConfigError: a package of the extra is missing.
    """
    for package in sorted(PACKAGES[extra]):
        if find_spec(package) is None:
            raise ConfigError(_missing(need, package, extra))


def _missing(need: str, package: str, extra: str) -> str:
    return f"{need} needs {package}, which is not installed; {install(extra)}"
