"""`qguide domain`: a checkpoint gets the domain of recorded states, and states are checked."""

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qguide.cli import app
from qguide.qnet.features.domain import Domain
from qguide.qnet.models.loading import embedded_path
from qguide.qnet.models.manifest import read_manifest
from qguide.qnet.types import Message
from tests.support.serving import ROOT

PAGES = (
    "README.md",
    "docs/start.md",
    "docs/connect/episodes.md",
    "docs/connect/options.md",
    "docs/operate/long-histories.md",
)
"""Pages whose states the Q model that ships has to guide."""


def embedded() -> Domain:
    domain = Domain.load(embedded_path("qnet"))
    assert domain is not None
    return domain


def recorded(path: Path, task: str, *, n: int) -> Path:
    rows = [
        {
            "task_id": f"{i}",
            "reward": 1.0,
            "messages": [{"role": "user", "content": f"{task} {i}"}, {"role": "assistant", "content": "Action: look"}],
        }
        for i in range(n)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_checkpoint_without_a_domain_gets_one_and_still_matches_its_manifest(tmp_path: Path) -> None:
    checkpoint = tmp_path / "q"
    shutil.copytree(embedded_path("qnet"), checkpoint)
    own = recorded(tmp_path / "own.jsonl", "You stand in a cave with lamp number", n=10)
    other = recorded(tmp_path / "other.jsonl", "Plan a weekend in Lisbon for person", n=10)

    arguments = ["domain", str(checkpoint), str(own), "--least", "0.4"]
    result = CliRunner().invoke(app, [*arguments, "--check", str(own), "--check", str(other)])

    assert result.exit_code == 0, result.output
    assert "0.00% of 10 states outside, in 0 of 10 tasks" in result.output
    assert "100.00% of 10 states outside, in 10 of 10 tasks" in result.output
    assert read_manifest(checkpoint) is not None
    found = Domain.load(checkpoint)
    assert found is not None
    assert found.unknown_limit == 0.4


def test_a_limit_without_recordings_is_refused(tmp_path: Path) -> None:
    checkpoint = tmp_path / "q"
    shutil.copytree(embedded_path("qnet"), checkpoint)
    before = (checkpoint / "domain.json").read_bytes()
    result = CliRunner().invoke(app, ["domain", str(checkpoint), "--least", "0.4"])
    assert result.exit_code == 2
    assert "--least" in result.output
    assert (checkpoint / "domain.json").read_bytes() == before


@pytest.mark.parametrize("page", PAGES)
def test_states_of_the_pages_are_inside_the_shipped_models_domain(page: str) -> None:
    text = (ROOT / page).read_text()
    states = re.findall(r'"content": ("You are in the middle[^"]*")', text)
    assert states
    for state in states:
        distance = embedded().distance((Message("user", json.loads(state)),))
        assert not distance.outside, state


@pytest.mark.parametrize("text", ["Plan a weekend in Lisbon", "Write a Python function that sorts a list."])
def test_a_chat_is_outside_the_shipped_models_domain(text: str) -> None:
    assert embedded().distance((Message("user", text),)).outside
