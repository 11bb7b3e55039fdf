"""A scorer of the operator's own code, named by its import path."""

import re
import sys
from pathlib import Path

import pytest

from qguide.qnet.errors import ConfigError
from qguide.server.q_models.build import build_models
from tests.support.serving import ROOT
from tests.unit.server.conftest import FAKES, Serve

PREFER = f"""#!{sys.executable}
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    print(float(row["history"][-1].split()[-1] in row["candidate"]))
"""
BROKEN = "def build():\n    raise ValueError('no licence')\n\n\nclass Nothing:\n    pass\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the documentation's scorer, its command, and scorers that are none."""
    page = (ROOT / "docs" / "bring" / "model.md").read_text()
    [example] = re.findall(
        r"```python\n(.*?)```", page.partition("### A scorer of your own code")[2], re.S
    )[:1]
    (tmp_path / "commanded.py").write_text(example)
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "prefer").write_text(PREFER)
    (tmp_path / "prefer").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_a_command_prefers_what_it_prints(serve: Serve) -> None:
    q_models = {"mine@3": "commanded:CommandScorer"}
    client = serve(FAKES.model_copy(update={"q_models": q_models}))
    body = {
        "q_model": "mine",
        "messages": [{"role": "user", "content": "Please open the box"}],
        "candidates": ["Action: look", "Action: open box 1", "Action: wait"],
    }
    scored = client.post("/v1/score", json=body).json()
    assert [score["q_value"] for score in scored["scores"]] == [0.0, 1.0, 0.0]
    assert (scored["q_model"], scored["q_model_version"]) == ("mine", "3")
    [card] = client.get("/v1/models").json()["q_models"]
    assert (card["id"], card["source"]) == ("mine@3", "imported")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("broken:build", "ValueError: no licence"),
        ("broken:Nothing", "CachingScorer"),
        ("broken:absent", "absent"),
        ("nowhere_to_be_found:build", "ModuleNotFoundError"),
    ],
)
def test_what_is_no_scorer_is_refused_at_the_start(source: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        build_models(FAKES.model_copy(update={"q_models": {"mine": source}}))
