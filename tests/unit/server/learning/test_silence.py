"""Episodes of which nothing is heard end as unknown, not as failures."""

import asyncio
from pathlib import Path

from fastapi.testclient import TestClient

from qguide.server.episodes.learning_part import LearningArm
from qguide.server.episodes.state import Outcome, ServedEpisode
from qguide.server.learning.group import Group
from qguide.server.learning.lines import EpisodeLine, SilentLine
from qguide.server.learning.progress import Progress
from qguide.server.learning.service import Learning
from qguide.server.learning.status_body import state_of
from qguide.server.learning.tally import OpenEpisodes
from qguide.server.settings.learning import Rules
from tests.unit.server.conftest import FAKES, Serve

GUIDED = LearningArm(trial=0, guided=True, share=0.5)
UNGUIDED = LearningArm(trial=0, guided=False, share=0.5)


def test_an_episode_is_silent_after_its_last_step() -> None:
    episodes, one = OpenEpisodes(60.0), ServedEpisode(id="a", arm=GUIDED)
    episodes.heard("a", one, now_s=0.0)
    episodes.heard("b", ServedEpisode(id="b"), now_s=10.0)
    episodes.heard("a", one, now_s=50.0)
    assert episodes.ended(now_s=69.0) == []
    assert [place for place, _ in episodes.ended(now_s=70.0)] == ["b"]
    assert episodes.ended(now_s=110.0) == [("a", SilentLine(episode=one.uid, arm=GUIDED))]
    assert episodes.ended(now_s=999.0) == []


def test_an_episode_with_an_outcome_is_not_silent() -> None:
    episodes, one = OpenEpisodes(60.0), ServedEpisode(id="a")
    episodes.heard("a", one, now_s=0.0)
    episodes.heard("a", one.closed(Outcome(reward=1.0)), now_s=1.0)
    assert episodes.ended(now_s=999.0) == []


def test_unknown_is_no_failure_and_a_late_outcome_counts() -> None:
    progress = Progress(Rules())
    progress.apply(EpisodeLine(episode="a", outcome=1.0, arm=UNGUIDED))
    for line in (
        SilentLine(episode="b", arm=UNGUIDED),
        SilentLine(episode="b", arm=UNGUIDED),
        SilentLine(episode="c", arm=GUIDED),
        SilentLine(episode="a", arm=UNGUIDED),
    ):
        progress.apply(line)
    state = state_of("_", progress)
    assert (state.unguided.unknown, state.guided.unknown) == (1, 1)
    assert (state.episodes, state.successful) == (1, 1.0)
    assert "2 more fell silent and count as unknown" in state.sentence

    progress.apply(EpisodeLine(episode="b", outcome=0.0, arm=UNGUIDED))
    state = state_of("_", progress)
    assert (state.unguided.unknown, state.episodes, state.successful) == (0, 2, 0.5)


def test_replicas_note_a_silent_episode_of_the_other_that_has_ended_as_ended(tmp_path: Path) -> None:
    one, other = (Group("_", tmp_path, Rules()) for _ in range(2))
    one.end(EpisodeLine(episode="a", outcome=1.0, arm=UNGUIDED))
    other.silent([SilentLine(episode="a", arm=UNGUIDED), SilentLine(episode="b", arm=UNGUIDED)])
    one.follow()
    assert one.progress.silent.total == other.progress.silent.total == 1


def test_a_server_tells_of_silent_episodes(serve: Serve, tmp_path: Path) -> None:
    settings = FAKES.model_copy(update={"episodes_dir": tmp_path, "learn": True, "learn_silence_s": 0.001})
    client: TestClient = serve(settings)
    body = {"messages": [{"role": "user", "content": "Find the mug."}], "episode_id": "e"}
    assert client.post("/v1/act", json=body).status_code == 200
    portal = client.portal
    assert portal is not None
    portal.call(asyncio.sleep, 0.01)
    learning: Learning = client.app.state.learning  # type: ignore[attr-defined]
    portal.call(learning.follow)
    assert client.get("/v1/learning").json()["unguided"]["unknown"] == 1
    assert client.post("/v1/episodes/e/outcome", json={"reward": 1.0}).status_code == 200
    found = client.get("/v1/learning").json()
    assert (found["unguided"]["unknown"], found["episodes"]) == (0, 1)
