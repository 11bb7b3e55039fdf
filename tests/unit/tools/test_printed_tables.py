"""Printed tables are recomputed from the per-episode rows beside them, and corrected by page."""

import dataclasses
import json

import pytest

from benchmarks.strangers.protocol import Result
from benchmarks.strangers.report import markdown
from qguide.training.evaluation.results import PlayedMethod, compare_pair, summarise
from tests.support.serving import ROOT
from tools.episode_rows import read_written
from tools.page_families import FAMILIES, LEVEL, page_family

RESULTS = ROOT / "results"
WRITTEN = sorted(path.name.removesuffix(".jsonl.gz") for path in (RESULTS / "episodes").iterdir())
PRINTED = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in WRITTEN}
OF_RUNS = [name for name in WRITTEN if "baseline" in PRINTED[name]]
"""Tables of several runs; the others are one evaluation's results."""
LARGE = ("hotpotqa_learned", "low_mended", "webshop_mended")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in OF_RUNS]
)
def test_a_table_is_recomputed_from_its_episodes(name: str) -> None:
    table = PRINTED[name]
    runs = read_written(RESULTS / "episodes" / f"{name}.jsonl.gz")
    seeds = table["conditions"]["seeds"]
    baseline = PlayedMethod(table["method"], runs[table["baseline"]])
    assert len(table["rows"]) >= 2
    for row in table["rows"]:
        played = {s.method: s for s in summarise(runs[row["run"]], seeds)}
        summary = played[row["summary"]["method"]]
        printed = {name: value for name, value in row["summary"].items() if value is not None}
        assert summary.model_dump(mode="json", include=set(printed)) == printed
        if row["against"] is not None:
            found = compare_pair(PlayedMethod(summary.method, runs[row["run"]]), baseline, seeds)
            assert found is not None
            assert found.model_dump(mode="json") == row["against"]


@pytest.mark.parametrize("name", sorted({*WRITTEN} - {*OF_RUNS}))
def test_an_evaluation_is_recomputed_from_the_episodes_of_its_methods(name: str) -> None:
    printed = PRINTED[name]
    seeds = printed["config"]["seeds"]
    runs = read_written(RESULTS / "episodes" / f"{name}.jsonl.gz")
    episodes = {key: row for run in runs.values() for key, row in run.items()}
    found = {summary.method: summary for summary in summarise(episodes, seeds)}
    assert {"greedy", "q-guided"} <= found.keys()
    for summary in printed["summary"]:
        if summary["method"] in found:
            again = found[summary["method"]].model_dump(mode="json", include=set(summary))
            assert again == summary
    for comparison in printed["comparisons"]:
        pair = (comparison["method"], comparison["other"])
        if found.keys() >= {*pair}:
            first, second = (PlayedMethod(method, episodes) for method in pair)
            compared = compare_pair(first, second, seeds)
            assert compared is not None
            assert compared.model_dump(mode="json") == comparison


@pytest.mark.parametrize(
    ("name", "page_name", "least"),
    [("strangers", "strangers", 40), ("strangers_told", "strangers", 16), ("real_llm_plays", "real-llms", 40)],
)
def test_a_page_of_strangers_is_recomputed_from_the_rewards_of_its_tasks(name: str, page_name: str, least: int) -> None:
    fields = [field.name for field in dataclasses.fields(Result)]
    rows = json.loads((RESULTS / f"{name}.json").read_text())
    results = [Result(**{name: row[name] for name in fields}) for row in rows]
    page = (ROOT / f"docs/results/{page_name}.md").read_text().splitlines()
    lines = [line for line in markdown(results).splitlines() if line.startswith("|")]
    assert len(lines) > least
    assert [line for line in lines if line not in page] == []


@pytest.mark.parametrize("page", FAMILIES)
def test_a_pages_family_is_more_than_one_comparison_and_corrects_them_all(page: str) -> None:
    family = page_family(page)
    assert len(family) >= 4
    assert all(each.adjusted >= each.p_value for each in family)
    least = min(family, key=lambda each: each.p_value)
    assert least.adjusted == pytest.approx(min(1, len(family) * least.p_value))


@pytest.mark.parametrize("page", ["methods.md", "environments.md"])
def test_a_large_family_leaves_fewer_than_its_tables_alone_would(page: str) -> None:
    family = page_family(page)
    assert len(family) > 100
    assert any(each.adjusted > LEVEL >= each.p_value for each in family)
