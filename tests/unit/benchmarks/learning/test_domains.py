"""The table of domains: what is outside of each Q model's domain, and what the check costs."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.learning.domains import Kind, app, beside, by_synonyms, reworded
from qguide.qnet.features.domain import Domain
from qguide.qnet.types import Message
from qguide.training.licence.domain import fit_domain

SMALL = ["errands", "--episodes=20", "--new=24"]


def recording(path: Path, words: str) -> Path:
    messages = [{"role": "user", "content": words}, {"role": "assistant", "content": f"Action: {words}"}]
    rows = [{"task_id": f"{n}", "reward": n % 2, "messages": [{**m} for m in messages]} for n in range(10)]
    for n, row in enumerate(rows):
        row["messages"][1]["content"] += f" {n}"  # type: ignore[index]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_states_are_laid_beside_each_domain_and_the_check_beside_a_step(tmp_path: Path) -> None:
    chats = recording(tmp_path / "chats.jsonl", "plan a weekend in Lisbon")
    others = recording(tmp_path / "others.jsonl", "plan a weekend in Porto with nine friends")
    options = ["--recorded", f"chats={chats}", "--others", f"chats={others}", "--output", str(tmp_path / "run")]
    said = CliRunner().invoke(app, [*SMALL, *options])
    assert said.exit_code == 0, said.output
    found = json.loads((tmp_path / "run" / "domains.json").read_text())
    rows = {(row["q_model"], row["states_of"]): row for row in found["beside"]}
    assert {name for model, name in rows if model == "chats"} >= {"own", "errands", "another policy", "politely"}
    for pair in (("errands", "chats"), ("chats", "errands")):
        assert (rows[pair]["outside"], rows[pair]["auc"]) == (1.0, 1.0)
    assert rows["chats", "own"] == {"q_model": "chats", "states_of": "own", "states": 2, "outside": 0.0, "auc": 0.5}
    assert rows["chats", "another policy"]["outside"] == 1.0
    assert all(0 < row["check_ms"] < row["step_ms"] for row in found["costs"])
    assert [row["q_model"] for row in found["costs"]] == ["errands", "chats"]
    assert "| chats | 1.0000 | 0 of " in (tmp_path / "run" / "domains.md").read_text()


def test_a_domain_that_takes_everything_is_no_better_than_chance() -> None:
    states = [("task", (Message("user", "open the red door"),))]
    weather = [("other", (Message("user", "rain over Oslo"),))]
    wide = Domain(unknown_limit=1.0, missing_limit=1.0)
    kinds = [Kind("doors", "", wide, states, {}, ()), Kind("weather", "", fit_domain(weather), weather, {}, ())]
    rows = {(row.q_model, row.states_of): row for row in beside(kinds)}
    assert (rows["doors", "weather"].outside, rows["doors", "weather"].auc) == (0.0, 0.5)
    assert rows["weather", "doors"].outside == 1.0


def test_only_the_task_is_put_in_other_words() -> None:
    first = Message("user", "You are in the room.\n\nYour task is to: put the pan on a shelf.")
    _, (said, *rest) = reworded(("1", (first, Message("assistant", "put the pan"))), by_synonyms)
    assert said.text == "You are in the room.\n\nYour task is to: place our pan on a shelf."
    assert rest == [Message("assistant", "put the pan")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--recorded", "chats"], "'chats' is not NAME=PATH"),
        (["--model", "chats=embedded"], "chats has no --recorded; name its recording"),
    ],
)
def test_what_is_not_named_is_refused_before_anything_is_played(
    options: list[str], message: str, tmp_path: Path
) -> None:
    refused = CliRunner().invoke(app, [*SMALL, *options, "--output", str(tmp_path / "run")])
    assert refused.exit_code == 2
    assert message in " ".join(refused.output.replace("│", " ").split())
    assert not (tmp_path / "run").exists()
