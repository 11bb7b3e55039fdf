"""`make setup` takes a build of torch that fits the machine, and says what it does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere pip's choice is right")


def set_up(folder: Path, *overrides: str, index_answers: bool = True, **variables: str) -> tuple[list[list[str]], str]:
    """Requests of `make setup` to pip, and its output; the Python there only takes notes."""
    python, log = folder / "venv" / "bin" / "python", folder / "log"
    python.parent.mkdir(parents=True)
    refusal = "true" if index_answers else f'case "$*" in *{CPU_INDEX}*) exit 1;; esac'
    python.write_text(f'#!/bin/sh\necho "$@" >> {log}\n{refusal}\n')
    python.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name != "TORCH_INDEX"}
    done = subprocess.run(
        ["make", "setup", f"VENV={folder / 'venv'}", *overrides],
        cwd=ROOT,
        env=kept | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.split() for line in log.read_text().splitlines()], done.stdout


def test_a_machine_without_a_driver_gets_the_cpu_build(tmp_path: Path) -> None:
    (torch, rest), output = set_up(tmp_path, "has_driver=")
    assert torch[torch.index("--index-url") + 1] == CPU_INDEX
    assert "--no-deps" in torch  # what torch needs comes from the usual index
    assert rest[-2:] == ["--editable", ".[train]"]
    assert CPU_INDEX not in rest
    assert "1/2: torch (the CPU build" in output
    assert "2/2" in output


def test_an_index_that_does_not_answer_leaves_the_choice_to_pip(tmp_path: Path) -> None:
    (_, torch, rest), output = set_up(tmp_path, "has_driver=", index_answers=False)
    assert torch[-1] == "torch"
    assert "--index-url" not in torch
    assert rest[-1] == ".[train]"
    assert f"note: no torch from {CPU_INDEX}" in output


@pytest.mark.parametrize("index", ["", "https://example.org/whl/cu130"])
def test_a_named_index_decides(index: str, tmp_path: Path) -> None:
    (torch, _), _ = set_up(tmp_path, "has_driver=", TORCH_INDEX=index)
    assert torch[-1] == "torch"
    assert torch[torch.index("install") :].count(index) == bool(index)
    assert CPU_INDEX not in torch


def test_a_machine_with_a_driver_leaves_the_choice_to_pip(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    (torch, _), _ = set_up(tmp_path, PATH=f"{tool.parent}:{os.environ['PATH']}")
    assert "--index-url" not in torch
