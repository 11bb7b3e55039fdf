"""The wheels, built of what the image copies: nothing that is needed at run time is left out."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

from qguide.qnet.packages import PACKAGES

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
BUILD_S = 300


def copied() -> list[str]:
    """A copy of the files that the image's build stage takes from the repository."""
    build_stage = DOCKERFILE.rpartition("\nFROM ")[0]
    lines = re.findall(r"^COPY (.+)$", build_stage, re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


def build_wheel(tree: Path, folder: Path) -> Path:
    """The tree's wheel, by the build backend that pip would call."""
    program = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The server's."""
    tree = tmp_path_factory.mktemp("tree")
    for name in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=IGNORED)
        else:
            (tree / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    with zipfile.ZipFile(build_wheel(tree, tmp_path_factory.mktemp("wheel"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def client_wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The client's."""
    tree = tmp_path_factory.mktemp("tree") / "client"
    shutil.copytree(ROOT / "clients" / "python", tree, ignore=IGNORED)
    with zipfile.ZipFile(build_wheel(tree, tmp_path_factory.mktemp("wheel"))) as opened:
        yield opened


def files_of(package: str, beneath: Path) -> dict[str, int]:
    """Sizes of all files of a package, as a wheel calls them."""
    return {
        str(path.relative_to(beneath)): path.stat().st_size
        for path in (beneath / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("package", ["qnet", "server", "training"])
def test_the_wheel_holds_every_file_of_the_packages(package: str, wheel: zipfile.ZipFile) -> None:
    held = {entry.filename: entry.file_size for entry in wheel.infolist()}
    expected = {f"qguide/{name}": size for name, size in files_of(package, ROOT).items()}
    assert expected.items() <= held.items()


def test_the_wheel_holds_every_file_of_the_commands(wheel: zipfile.ZipFile) -> None:
    held = {entry.filename: entry.file_size for entry in wheel.infolist()}
    assert files_of("qguide", ROOT).items() <= held.items()


PLAYED = ("collect", "output=runs/played", "environment.count=2", "workers.executor=processes")
TRAINED = (
    *("sft", 'trajectories=["runs/played"]', "output=runs/sft", "optimization.epochs=1"),
    *("optimization.processes=2", "optimization.threads=1"),
)


@pytest.mark.parametrize(
    ("jobs", "written"),
    [
        ((PLAYED,), "played/rows.jsonl"),
        pytest.param((PLAYED, TRAINED), "sft/checkpoint/manifest.json", marks=pytest.mark.slow),
    ],
)
def test_own_folders_of_the_same_names_are_not_taken_for_ours(
    jobs: tuple[tuple[str, ...], ...], written: str, wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    """Somebody's `training` and `server` in the current directory, which Python searches first."""
    wheel.extractall(tmp_path / "installed")
    for name in ("qnet", "server", "training"):
        (tmp_path / "project" / name).mkdir(parents=True)
        module = tmp_path / "project" / name / "__init__.py"
        module.write_text('raise RuntimeError("this is not QGuide\'s")')
    for job, *options in jobs:
        done = subprocess.run(
            [sys.executable, "-m", "qguide", job, *(word for option in options for word in ("--set", option))],
            cwd=tmp_path / "project",
            env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")},
            capture_output=True,
            text=True,
            timeout=BUILD_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "project" / "runs" / written).exists()


@pytest.mark.slow
def test_an_installation_finds_its_job_files_in_an_empty_folder(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "installed")
    (tmp_path / "project" / "runs" / "errands" / "served").mkdir(parents=True)
    command = [sys.executable, "-m", "qguide", "run", "training/configs/errands/pipeline.toml"]
    done = subprocess.run(
        [*command, "--dry-run"],
        cwd=tmp_path / "project",
        env=os.environ | {"PYTHONPATH": str(tmp_path / "installed"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "train-qnet" in done.stdout


def test_the_wheel_brings_the_embedded_models_and_the_command(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    for model in ("policy", "qnet"):
        for file in ("model.safetensors", "manifest.json", "chat_template.jinja"):
            assert f"qguide/qnet/embedded/{model}/{file}" in names
    (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
    assert b"qguide = qguide.cli:app" in wheel.read(entry_points)


def test_the_wheel_holds_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"qguide"}


def test_the_client_needs_httpx_and_pydantic_alone(client_wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in client_wheel.namelist() if name.endswith("/METADATA"))
    metadata = Parser().parsestr(client_wheel.read(name).decode())
    needed = metadata.get_all("Requires-Dist") or []
    assert {re.split(r"\W", one)[0] for one in needed} == {"httpx", "pydantic"}
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"


def test_the_clients_wheel_is_typed_and_whole(client_wheel: zipfile.ZipFile) -> None:
    source = ROOT / "clients" / "python" / "src"
    held = {entry.filename: entry.file_size for entry in client_wheel.infolist()}
    expected = files_of("qguide_client", source)
    assert "qguide_client/py.typed" in expected
    assert expected.items() <= held.items()
    tops = {name.partition("/")[0] for name in held}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"qguide_client"}


def test_the_clients_licence_is_ours() -> None:
    licence = (ROOT / "clients" / "python" / "LICENSE").read_text()
    assert licence == (ROOT / "LICENSE").read_text()


def test_the_image_gets_what_it_copies_and_nothing_else() -> None:
    lines = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == set(copied())


def test_each_extra_brings_the_packages_that_its_name_is_given_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, packages in PACKAGES.items():
        asked = project["optional-dependencies"][extra]
        brought = {re.split(r"[^\w.-]", one)[0] for one in asked if not one.startswith("qguide")}
        assert brought == packages
    assert not {re.split(r"[^\w.-]", one)[0] for one in project["dependencies"]} & set().union(*PACKAGES.values())


def test_the_image_runs_as_nobody_special_and_says_when_it_is_ready() -> None:
    final = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", final, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK .*\n    CMD .*/readyz", final, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["qguide"\]\nCMD \["serve"\]$', final, re.MULTILINE)


def test_the_images_health_check_is_a_program() -> None:
    """Docker takes a CMD that is no JSON as a shell's line, quietly."""
    line = re.search(r"^    CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert line
    python, option, program = json.loads(line[1])
    assert (python, option) == ("python", "-c")
    compile(program, "healthcheck", "exec")
