"""The measurement of learning, with a server and both SDKs."""

from pathlib import Path
from typing import get_args

import pytest

from benchmarks.learning.agents import AgentName
from benchmarks.learning.curve import CurveBench, Plan, play_row
from qguide.training.learning.sources import read_learnable
from qguide.training.recordings.fields import Fields


@pytest.mark.parametrize(
    ("environment", "agent"), [("errands", "openai"), pytest.param("search", "anthropic", marks=pytest.mark.slow)]
)
def test_an_agent_plays_at_a_server_and_posts_its_outcomes(tmp_path: Path, environment: str, agent: AgentName) -> None:
    pytest.importorskip(agent)
    config = CurveBench(output=tmp_path / "curve.json", episodes=4, delay_s=0)
    row = play_row(Plan(environment, agent, 0, learns=False), config, tmp_path)
    assert len(row.outcomes) == 4
    assert (row.phases, row.state) == ((), {})
    lines = [f.read_text().splitlines() for f in (tmp_path / "episodes").glob("trees-*")]
    assert sum(map(len, lines)) == 4, "each episode was recorded with its outcome"


@pytest.mark.parametrize("agent", get_args(AgentName))
def test_what_an_agent_tells_of_its_earnings_is_learned_from_and_is_no_part_of_the_outcome(
    tmp_path: Path, agent: AgentName
) -> None:
    pytest.importorskip(agent)
    config = CurveBench(output=tmp_path / "c.json", episodes=4, in_process=True, tell_earned=True)
    row = play_row(Plan("crafting", agent, 0, learns=True), config, tmp_path)
    fields = Fields(default_reward=0.0)
    folder = tmp_path / "episodes"
    recorded = read_learnable([*folder.glob("trees-*")], fields, skip_bad=False)

    assert [episode.reward for episode in recorded] == pytest.approx(row.outcomes)
    assert any(earned > 0 for episode in recorded for earned in episode.rewards[:-1])
    for episode in recorded:
        assert not episode.rewards or episode.rewards[-1] == episode.reward
        assert len(episode.rewards) in (0, len(episode.actions))


@pytest.mark.slow
def test_a_curve_in_this_process_depends_on_its_seed_alone(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    config = CurveBench(output=tmp_path / "c.json", episodes=26, in_process=True)
    plan = Plan("errands", "openai", 0, learns=True)
    first, again = (play_row(plan, config, tmp_path / name) for name in ("first", "again"))
    assert first.outcomes == again.outcomes
    assert first.state["fit"] == again.state["fit"] is not None, "it was waited for"
