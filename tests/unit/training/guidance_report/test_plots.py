"""Plots of the guidance report hold the names of arms whole."""

import re

import pytest
from matplotlib.textpath import TextPath

from qguide.training.guidance_report.html_page import arms_plot
from qguide.training.guidance_report.schema import Arm, Spread

FONT_SIZE = 11
"""Of the page's style."""


@pytest.mark.parametrize("name", ["one candidate", "shop/checkpoints/seventh-of-may@v12", "W" * 120])
def test_the_name_of_an_arm_is_not_clipped(name: str) -> None:
    spread = Spread(mean=1.0, median=1.0, p95=2.0)
    arm = Arm(
        name=name, episodes=9, tasks=9, mean_outcome=0.5, ci95=(0.4, 0.6), mean_steps=3.0, tokens=spread, ms=spread
    )
    svg = arms_plot([arm, arm.model_copy(update={"name": "b", "mean_outcome": 0.1})])
    width = float(re.findall(r'viewBox="0 0 (\d+) ', svg)[0])
    found = re.findall(r'<text class="arm" x="(\d+)" y="(\d+)">([^<]*)<', svg)
    assert [text for *_, text in found] == [name, "b"]
    for left, top, text in found:
        drawn = TextPath((0, 0), text, size=FONT_SIZE).get_extents()
        assert float(left) >= 0
        assert float(left) + drawn.width <= width
        assert float(top) >= FONT_SIZE
