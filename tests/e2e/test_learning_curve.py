"""The measurement of learning, with a server and both SDKs."""

from pathlib import Path
from typing import get_args

import pytest

from benchmarks.learning.agents import AgentName
from benchmarks.learning.curve import CurveBench, Plan, play_row


@pytest.mark.parametrize("agent", get_args(AgentName))
@pytest.mark.parametrize("environment", ["errands", "search"])
def test_an_agent_plays_at_a_server_and_posts_its_outcomes(
    tmp_path: Path, environment: str, agent: AgentName
) -> None:
    pytest.importorskip(agent)
    config = CurveBench(output=tmp_path / "curve.json", episodes=4, delay_s=0)
    row = play_row(Plan(environment, agent, 0, learns=False), config, tmp_path)
    assert len(row.outcomes) == 4
    assert (row.phases, row.state) == ((), {})
    lines = [f.read_text().splitlines() for f in (tmp_path / "episodes").glob("trees-*")]
    assert sum(map(len, lines)) == 4, "each episode was recorded with its outcome"
