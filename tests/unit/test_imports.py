"""The layers: server → qnet ← training; only the console script knows both."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAY_IMPORT: dict[str, set[str]] = {
    "qnet": set(),
    "server": {"qnet"},
    "training": {"qnet"},
    "qguide": {"qnet", "server", "training"},
}
WITHOUT_TORCH = (
    "types.py",
    "errors.py",
    "selection.py",
    "agent.py",
    "adaptive.py",
    "perturbation.py",
    "guidance.py",
)
INPUT_OUTPUT = {"pathlib", "os", "io", "json", "shutil", "subprocess", "httpx", "rich", "tomllib"}


def imports_of(source: str) -> Iterator[str]:
    """Dotted names of everything that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, level=0):
                yield str(module)
            case ast.ImportFrom(level=level) if level:
                yield "." * level


def forbidden_imports(package: str, source: str) -> list[str]:
    """Imports that run against an arrow; relative ones, whose arrow cannot be read, too."""
    others = set(MAY_IMPORT) - {package} - MAY_IMPORT[package]
    return [
        name
        for name in imports_of(source)
        if name.startswith(".") or name.partition(".")[0] in others | {"tests"}
    ]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_no_arrow_runs_the_wrong_way(package: str) -> None:
    modules = sorted((ROOT / package).rglob("*.py"))
    assert modules, f"{package} has no modules; is the layout still the one above?"
    wrong = {
        str(path.relative_to(ROOT)): names
        for path in modules
        if (names := forbidden_imports(package, path.read_text()))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("qnet", "import server.app"),
        ("qnet", "def late():\n    from training.tasks import Task"),
        ("server", "from training import records"),
        ("training", "from server.schemas import ActRequest"),
        ("training", "from . import records"),
        ("qnet", "from tests.tiny_models import renderer"),
    ],
)
def test_the_guard_sees_a_wrong_arrow(package: str, source: str) -> None:
    assert forbidden_imports(package, source)


def test_the_client_needs_neither_ours_nor_torch() -> None:
    modules = sorted((ROOT / "clients" / "python" / "src").rglob("*.py"))
    assert modules
    imported = {n.partition(".")[0] for path in modules for n in imports_of(path.read_text())}
    assert imported - sys.stdlib_module_names == {"httpx", "pydantic", "qguide_client"}


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_the_words_of_the_online_path_need_no_torch(name: str) -> None:
    imported = {n.partition(".")[0] for n in imports_of((ROOT / "qnet" / name).read_text())}
    assert not imported & {"torch", "transformers", "numpy"}


def test_algorithms_do_no_input_or_output() -> None:
    for path in (ROOT / "training" / "algorithms").glob("*.py"):
        imported = {name.partition(".")[0] for name in imports_of(path.read_text())}
        assert not imported & INPUT_OUTPUT, path.name
