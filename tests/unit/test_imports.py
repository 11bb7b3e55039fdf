"""Layers: server → qnet ← training; only the commands know both; no import runs in a circle.

The folders of these lie at the top of the repository and are imported below `qguide`, where the
installation has them, too: a package named `server` or `training` would be in everybody's way.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAY_IMPORT: dict[str, set[str]] = {
    "qnet": set(),
    "server": {"qnet"},
    "training": {"qnet"},
    "qguide": {"qnet", "server", "training"},
    "benchmarks": {"qnet", "server", "training", "qguide"},
}
BELOW_QGUIDE = ("qnet", "server", "training")
WITHOUT_TORCH = (
    "types.py",
    "errors.py",
    "decision/selection.py",
    "decision/decide.py",
    "decision/guide.py",
    "decision/perturbation.py",
)
MOST_MODULES = 20
REGISTRY = "qguide.training.environments.registry"
SERVERS = {
    "fastapi",
    "starlette",
    "uvicorn",
    "subprocess",
    "multiprocessing",
    "http.server",
    "socketserver",
    "asyncio.create_subprocess_exec",
    "asyncio.create_subprocess_shell",
    "asyncio.start_server",
    "asyncio.start_unix_server",
    "create_server",
    "create_unix_server",
}
"""Modules and functions that start a server or a process."""
INPUT_OUTPUT = {"pathlib", "os", "io", "json", "shutil", "subprocess", "httpx", "rich", "tomllib"}


@cache
def _parsed(source: str) -> tuple[tuple[ast.Import | ast.ImportFrom, ...], tuple[str, ...]]:
    """Import statements and own classes of a module, which several tests read."""
    tree = ast.parse(source)
    imports = tuple(node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return imports, tuple(own_classes(tree))


def _imports(source: str) -> tuple[ast.Import | ast.ImportFrom, ...]:
    return _parsed(source)[0]


def imports_of(source: str) -> Iterator[str]:
    """Dotted names of everything that a module imports, wherever in it."""
    for node in _imports(source):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, level=0):
                yield str(module)
            case ast.ImportFrom(level=level) if level:
                yield "." * level


def layer_of(name: str) -> str:
    """Folder at the top of the repository that a dotted name lies in."""
    first, _, rest = name.partition(".")
    below = rest.partition(".")[0]
    return below if first == "qguide" and below in BELOW_QGUIDE else first


def forbidden_imports(package: str, source: str) -> list[str]:
    """Imports against the direction of the layers, and names that only a checkout has."""
    others = set(MAY_IMPORT) - {package} - MAY_IMPORT[package]
    return [
        name
        for name in imports_of(source)
        if name.partition(".")[0] in {"", "tests", *BELOW_QGUIDE} or layer_of(name) in others
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
        ("qnet", "import qguide.server.app"),
        ("qnet", "def late():\n    from qguide.training.tasks import Task"),
        ("server", "from qguide.training import records"),
        ("server", "from qguide import training"),
        ("server", "from server.app import create_app"),
        ("training", "from qguide.server.schemas import ActRequest"),
        ("training", "from . import records"),
        ("qnet", "from tests.tiny_models import renderer"),
    ],
)
def test_the_guard_sees_a_wrong_arrow(package: str, source: str) -> None:
    assert forbidden_imports(package, source)


@cache
def folder_graph() -> dict[str, set[str]]:
    """Folders whose modules import from another folder, as dotted names."""
    modules = {_dotted(path): path for package in MAY_IMPORT for path in _modules(package)}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        folder = _folder(name, path)
        source = path.read_text()
        named = import_paths(source) if name == REGISTRY else ()
        targets = {_nearest(target, modules) for target in (*_targets(source), *named)}
        folders = {_folder(target, modules[target]) for target in targets if target is not None}
        graph.setdefault(folder, set()).update(folders - {folder})
    return graph


def import_paths(source: str) -> Iterator[str]:
    """Modules that a registry names in strings such as "package.module:NAME"."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Dict(values=values):
                for value in values:
                    match value:
                        case ast.Constant(value=str(text)) if ":" in text:
                            yield text.partition(":")[0]


def _modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = ("qguide", *parts) if parts[0] in BELOW_QGUIDE else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _folder(name: str, path: Path) -> str:
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


def _targets(source: str) -> Iterator[str]:
    """Dotted names of what a module imports, the imported name included: it may be a module."""
    for node in _imports(source):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names) if module:
                yield from (f"{module}.{alias.name}" for alias in names)


def _nearest(target: str, modules: Mapping[str, Path]) -> str | None:
    """The module that a dotted name is or lies in; None where it is no module of ours."""
    while target not in modules and target:
        target = target.rpartition(".")[0]
    return target or None


def order_of(graph: Mapping[str, Set[str]]) -> list[str]:
    """Folders, each after those that it imports from.

    Raises:
        CycleError: some folders import from each other in a circle; its second argument names them.
    """
    return list(TopologicalSorter(graph).static_order())


def test_no_folder_arrow_runs_in_a_circle() -> None:
    graph = folder_graph()
    order = order_of(graph)
    assert {
        "qguide.qnet",
        "qguide.qnet.engine",
        "qguide.server.routes",
        "qguide.training.jobs",
        "qguide.commands",
    } <= set(order)
    for folder in order:
        print(folder, "→", " ".join(sorted(graph.get(folder, ()))) or "nothing of ours")  # noqa: T201


def test_the_guard_sees_a_circle() -> None:
    with pytest.raises(CycleError):
        order_of(
            {"qguide.server.chat": {"qguide.server.own_bodies"}, "qguide.server.own_bodies": {"qguide.server.chat"}}
        )


def test_the_guard_sees_what_the_registry_names() -> None:
    assert list(import_paths('E = {"shop": "training.shop.bundle:SHOP"}')) == ["training.shop.bundle"]
    assert "qguide.training.environments.alfworld" in folder_graph()["qguide.training.environments"]


def test_no_two_classes_have_one_name() -> None:
    """But for a body's part that is another's with the fields' descriptions: it derives from it."""
    places = dict[str, list[str]]()
    for package in ("qguide", *BELOW_QGUIDE):
        for path in _modules(package):
            for name in _parsed(path.read_text())[1]:
                places.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def own_classes(tree: ast.Module) -> Iterator[str]:
    """Public classes of a module, without those that derive from one of their own name."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name, bases=bases) if not name.startswith("_"):
                if name not in {base.attr for base in bases if isinstance(base, ast.Attribute)}:
                    yield name


def test_no_folder_has_more_modules_than_a_reader_takes_in() -> None:
    counts = Counter(path.parent for package in MAY_IMPORT for path in _modules(package))
    crowded = {str(folder): count for folder, count in counts.items() if count > MOST_MODULES}
    assert crowded == {}


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


def test_algorithms_know_no_environment_and_no_job() -> None:
    allowed = ("qguide.training.algorithms.", "qguide.training.trajectory")
    for path in (ROOT / "training" / "algorithms").glob("*.py"):
        ours = [name for name in imports_of(path.read_text()) if name.startswith("qguide.training.")]
        assert [name for name in ours if not name.startswith(allowed)] == [], path.name


def test_qnet_starts_no_server() -> None:
    for path in _modules("qnet"):
        found = set(servers_in(path.read_text()))
        # The trial of a downloaded tokenizer is a process that ends before its caller goes on.
        tried = {"subprocess"} if path.name == "tokenizer_check.py" else set()
        assert found == tried, path


def servers_in(source: str) -> Iterator[str]:
    """Uses of anything that starts a server or a process."""
    for name in (*imports_of(source), *_targets(source)):
        if {name, name.partition(".")[0]} & SERVERS:
            yield name
    used = {name.rpartition(".")[2] for name in SERVERS}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in used and {node.attr, ast.unparse(node)} & SERVERS:
            yield ast.unparse(node)


@pytest.mark.parametrize(
    "source",
    [
        "import uvicorn.config",
        "from multiprocessing import Process",
        "from http import server",
        "import http.server",
        "import asyncio\nasyncio.create_subprocess_exec('vllm')",
        "from asyncio import start_server",
        "loop.create_server(f)",
    ],
)
def test_the_guard_sees_a_server(source: str) -> None:
    assert list(servers_in(source))
