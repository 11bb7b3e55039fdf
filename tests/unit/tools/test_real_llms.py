"""The page on real LLMs is made of the figures, and these of the rows of its tasks."""

import json
from collections import defaultdict
from statistics import fmean

import pytest

from tools.real_llms import BEGIN, FIGURES, NAMES, OTHERS, OTHERS_PAGE, PAGE, others_table, read_rows, tables

TOLD = json.loads(FIGURES.read_text())


def test_the_tables_of_the_pages_are_those_of_the_figures() -> None:
    assert f"{BEGIN}\n\n{tables(TOLD)}\n" in PAGE.read_text()
    assert f"{BEGIN}\n\n{others_table(TOLD)}\n" in OTHERS_PAGE.read_text()


def test_the_figures_are_the_means_of_the_tasks() -> None:
    rewards: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in read_rows():
        for chooser, reward in row["rewards"].items():
            rewards[row["source"], chooser].append(reward)
    assert {source for source, _ in rewards} == TOLD.keys()
    for (source, chooser), found in rewards.items():
        told = TOLD[source]["all"]
        assert told["tasks"] == len(found)
        assert told["choosers"][chooser]["reward"] == pytest.approx(fmean(found), abs=2e-4)


@pytest.mark.parametrize("source", TOLD)
def test_rules_are_beside_every_choice_of_q(source: str) -> None:
    found = TOLD[source]["all"]["choosers"]
    q = found["q" if source in OTHERS else "q in group"]
    assert q["reward"] <= found["oracle"]["reward"]
    assert source not in NAMES or found["random"]["reward"] <= q["reward"]
    assert len(q["trainings"]) >= 3
