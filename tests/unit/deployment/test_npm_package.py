"""The TypeScript client's package, as far as it can be read without npm."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "clients" / "typescript"
IMPORT = re.compile(r'^(?:import|export)\b[^"]*?\bfrom "([^"]+)"', re.MULTILINE)


def read(name: str) -> dict[str, Any]:
    """A JSON file of the package."""
    found: dict[str, Any] = json.loads((PACKAGE / name).read_text())
    return found


def test_it_needs_nothing_at_run_time() -> None:
    manifest = read("package.json")
    assert not {"dependencies", "peerDependencies", "optionalDependencies"} & manifest.keys()
    assert manifest["devDependencies"].keys() == {"typescript", "@types/node", "openapi-typescript"}
    modules = sorted((PACKAGE / "src").glob("*.ts"))
    assert modules
    for path in modules:
        assert all(name.startswith("./") for name in IMPORT.findall(path.read_text())), path.name


def test_what_builds_it_is_pinned() -> None:
    for version in read("package.json")["devDependencies"].values():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)


def test_the_lock_names_no_host_and_a_hash_for_every_package() -> None:
    lock = read("package-lock.json")
    installed = [one for name, one in lock["packages"].items() if name]
    assert installed
    for one in installed:
        assert "resolved" not in one
        assert one["integrity"].startswith("sha512-")
        assert "://" not in json.dumps({**one, "funding": None})


def test_its_version_and_its_licence_are_those_of_the_python_client() -> None:
    manifest = read("package.json")
    sibling = ROOT / "clients" / "python"
    version = (sibling / "src" / "qguide_client" / "version.py").read_text()
    assert f'VERSION: Final = "{manifest["version"]}"' in version
    licence = tomllib.loads((sibling / "pyproject.toml").read_text())["project"]["license"]
    assert manifest["license"] == read("package-lock.json")["packages"][""]["license"] == licence
    assert (PACKAGE / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
