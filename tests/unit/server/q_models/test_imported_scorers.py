"""A scorer of the operator's own code, named by its import path."""

import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qguide.cli import app
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
SHUFFLED = """
from random import random
from qguide.qnet.sliced_scorer import CachingScorer
from qguide.qnet.types import ScoreResult


class Shuffled(CachingScorer):
    name = "shuffled"

    def score(self, requests):
        return [ScoreResult(tuple(random() for _ in one.candidates[:2]), 0) for one in requests]


class ByPlace(Shuffled):
    def score(self, requests):
        return [ScoreResult(tuple(map(float, range(len(r.candidates)))), 0) for r in requests]
"""
BROKEN = "def build():\n    raise ValueError('no licence')\n\n\nclass Nothing:\n    pass\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the documentation's scorer, its command, and scorers that are none."""
    page = (ROOT / "docs" / "bring" / "model.md").read_text()
    [example] = re.findall(r"```python\n(.*?)```", page.partition("### A scorer of your own code")[2], re.S)[:1]
    (tmp_path / "commanded.py").write_text(example)
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "shuffled.py").write_text(SHUFFLED)
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
def test_no_draw_is_saved_where_the_highest_value_is_unknown(serve: Serve) -> None:
    client = serve(FAKES.model_copy(update={"q_models": {"mine": "commanded:CommandScorer"}}))
    body = {"messages": [{"role": "user", "content": "Please open the box"}], "num_candidates": 6}
    options = {"q_model": "mine", "until_decided": True}
    answer = client.post("/v1/act", json=body | options | {"tau": 0.01}).json()
    assert answer["draws_saved"] == 0


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("broken:build", r"'broken:build' .*ValueError: .*line 2\)"),
        ("broken:Nothing", "CachingScorer"),
        ("broken:absent", "absent"),
        ("nowhere_to_be_found:build", "ModuleNotFoundError"),
    ],
)
def test_what_is_no_scorer_is_refused_at_the_start(source: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        build_models(FAKES.model_copy(update={"q_models": {"mine": source}}))


@pytest.mark.usefixtures("folder")
def test_a_scorer_that_keeps_the_contract_passes_every_check() -> None:
    for source in ("commanded:CommandScorer", "embedded"):
        done = CliRunner().invoke(app, ["scorer", "check", source])
        assert done.exit_code == 0, done.output
        assert "6 passed, 0 failed, 0 not checked" in done.output


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("Shuffled", ["3 candidates have 2 values", "a second call changes the values"]),
        ("ByPlace", ["candidates in reverse order changes the values", "remedy: score each"]),
    ],
)
def test_what_a_scorer_breaks_is_told_with_its_remedy(name: str, rules: list[str]) -> None:
    done = CliRunner().invoke(app, ["scorer", "check", f"shuffled:{name}"])
    assert done.exit_code == 1, done.output
    for rule in rules:
        assert rule in done.output
