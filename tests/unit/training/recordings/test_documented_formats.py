"""The examples of docs/bring/data.md are imported."""

import json
from pathlib import Path

import pytest

from qguide.training.jobs.import_episodes import ImportConfig, run_import
from tests.support.documents import blocks_of

MARKS = {"messages": "reward", "sharegpt": "conversations", "otel": "resourceSpans"}


@pytest.mark.parametrize("name", MARKS)
def test_the_documented_example_is_imported(name: str, tmp_path: Path) -> None:
    examples = [
        json.loads(block.text)
        for block in blocks_of("docs/bring/data.md")
        if block.language == "json" and MARKS[name] in json.loads(block.text)
    ]
    source = tmp_path / "episodes.jsonl"
    source.write_text(json.dumps(examples[0]))
    key = "gen_ai.evaluation.score.value" if name == "otel" else ""
    report = run_import(ImportConfig(source=source, output=tmp_path / "out", reward_key=key))
    assert (report.episodes, report.reward_max) == (1, 1.0)
