"""Printed tables are recomputed from the per-episode rows beside them, and corrected by page."""

import json

import pytest

from tests.support.serving import ROOT
from tools.episode_rows import read_written
from tools.page_families import FAMILIES, LEVEL, page_family
from training.evaluation.results import Played, compare_pair, summarise

RESULTS = ROOT / "results"
TABLES = sorted(path.name.removesuffix(".jsonl.gz") for path in (RESULTS / "episodes").iterdir())


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_recomputed_from_its_episodes(name: str) -> None:
    table = json.loads((RESULTS / f"{name}.json").read_text())
    runs = read_written(RESULTS / "episodes" / f"{name}.jsonl.gz")
    seeds = table["conditions"]["seeds"]
    baseline = Played(table["method"], runs[table["baseline"]])
    assert len(table["rows"]) >= 3
    for row in table["rows"]:
        played = {s.method: s for s in summarise(runs[row["run"]], seeds)}
        summary = played[row["summary"]["method"]]
        printed = {name: value for name, value in row["summary"].items() if value is not None}
        assert summary.model_dump(mode="json", include=set(printed)) == printed
        if row["against"] is not None:
            found = compare_pair(Played(summary.method, runs[row["run"]]), baseline, seeds)
            assert found is not None
            assert found.model_dump(mode="json") == row["against"]


@pytest.mark.parametrize("page", FAMILIES)
def test_a_pages_family_is_more_than_one_table_and_corrects_at_least_as_much(page: str) -> None:
    family = page_family(page)
    assert len(family) > 100
    assert all(each.adjusted >= each.p_value for each in family)
    least = min(family, key=lambda each: each.p_value)
    assert least.adjusted == pytest.approx(min(1, len(family) * least.p_value))
    assert any(each.adjusted > LEVEL >= each.p_value for each in family)
