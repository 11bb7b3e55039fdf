"""The Dockerfile installs torch only with the extras that need it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.serving import ROOT

STEPS = re.findall(
    r"^RUN --mount=\S+ (.+)$",
    (ROOT / "docker/Dockerfile").read_text().replace("\\\n", " "),
    re.MULTILINE,
)


def installed(folder: Path, extras: str) -> str:
    """The arguments of pip in all steps, and the requirements that they read."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "pip").write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n')
    (programs / "pip").chmod(0o755)
    (programs / "python").symlink_to(sys.executable)
    (folder / "pyproject.toml").symlink_to(ROOT / "pyproject.toml")
    for step in STEPS:
        environment = {"PATH": f"{programs}:/usr/bin:/bin", "TORCH": "cpu", "EXTRAS": extras}
        subprocess.run(["sh", "-ec", step], cwd=folder, env=environment, check=True)
    return (folder / "asked").read_text() + (folder / "requirements.txt").read_text()


@pytest.mark.parametrize(
    ("extras", "torch"),
    [("train,otel", True), ("models", True), ("learn,remote", False), ("otel", False), ("", False)],
)
def test_torch_comes_with_models_and_train_alone(tmp_path: Path, extras: str, torch: bool) -> None:
    lines = installed(tmp_path, extras)
    assert "fastapi" in lines
    assert ("torch" in lines) == torch
    assert ("scipy" in lines) == (torch or "learn" in extras)
    assert ("transformers" in lines) == (torch or "remote" in extras)
    assert "qguide[" not in lines
    assert ("opentelemetry-sdk" in lines) == ("otel" in extras)
