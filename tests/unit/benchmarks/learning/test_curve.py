"""The measurement of learning while serving: agents, records and reports."""

from itertools import islice
from pathlib import Path

import pytest

from benchmarks.learning.agents import Game, build_agent
from benchmarks.learning.curve import CurveBench, games_of, plans_of
from benchmarks.learning.records import CurveRow, CurveRun, LatencyRow, PhaseChange, Spread
from benchmarks.learning.report import cells_of, markdown, plot_curve
from benchmarks.learning.servers import ChangingMock, served_mock
from benchmarks.measurement.measure import describe_machine
from benchmarks.strangers.catalogue import STRANGERS
from qguide.qnet.types import Message, SampleRequest, Sampling


@pytest.fixture(scope="module", params=STRANGERS)
def played(request: pytest.FixtureRequest) -> tuple[Game, list[float], float]:
    """An episode of each environment by an OpenAI agent at the mock itself."""
    pytest.importorskip("openai")
    stranger = STRANGERS[request.param]
    [game] = islice(games_of(stranger, 0, 1), 1)
    with served_mock(stranger.policy(), seed=0) as upstream:
        found = build_agent("openai", upstream.removesuffix("/v1")).play(game, "e")
    return game, found.reply_s, found.result.reward


@pytest.mark.server
def test_an_openai_agent_plays_every_environment(played: tuple[Game, list[float], float]) -> None:
    game, reply_s, reward = played
    assert 1 <= len(reply_s) <= game.max_steps
    assert 0 <= reward <= 1


def row(outcomes: list[float], *, learns: bool, phases: tuple[PhaseChange, ...] = ()) -> CurveRow:
    return CurveRow(
        environment="errands",
        agent="openai",
        seed=0,
        learns=learns,
        outcomes=tuple(outcomes),
        phases=phases,
        seconds=1.0,
    )


PHASES = tuple(
    PhaseChange(episode=at, phase=phase, reason="")
    for at, phase in ((50, "trial"), (90, "guiding"), (180, "collecting"))
)
LEARNED = row([0.0] * 100 + [1.0] * 100, learns=True, phases=PHASES)
PLAIN = row([0.0, 1.0] * 100, learns=False)


def test_a_row_knows_its_blocks_its_regret_and_its_phases() -> None:
    assert LEARNED.means(100) == [0, 1]
    assert LEARNED.means(150) == [pytest.approx(1 / 3)]
    assert LEARNED.regret(150) == 100
    assert (LEARNED.first("guiding"), PLAIN.first("guiding")) == (90, None)


def test_a_seed_is_reported_beside_the_same_seed_without_guidance() -> None:
    [cells] = cells_of([LEARNED, PLAIN])
    assert cells == ("0", "50", "90", "180", "0.00", "1.00", "1.00", "0.50", "100", "1.00")


def test_the_table_and_the_plot_are_of_all_agents(tmp_path: Path) -> None:
    machine = describe_machine(device="cpu", threads=1)
    other = LEARNED.model_copy(update={"agent": "anthropic"})
    run = CurveRun(complete=True, command="", machine=machine, rows=(LEARNED, other, PLAIN))
    table = markdown(run)
    assert "## errands, the SDK of anthropic" in table
    assert "| 0 | 50 | 90 | 180 | 0.00 | 1.00 | 1.00 | – | 100 | – |" in table
    plot_curve(run, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_tasks_come_in_an_order_of_the_seed_and_again_and_again() -> None:
    def asked(seed: int) -> list[str]:
        return [game.environment.reset() for game in games_of(STRANGERS["errands"], seed, 200)]

    assert asked(0) == asked(0) != asked(1)
    assert len(set(asked(0))) > 55, "most of the 64 errands"


def test_a_mock_changes_while_it_is_served() -> None:
    search = STRANGERS["search"]
    mock = ChangingMock(search.policy(0))
    for world in (0, 1):
        mock.now = search.policy(world)
        [game] = games_of(search, 0, 1, world=world)
        asked = Message("user", game.environment.reset())
        request = SampleRequest((asked,), 3, Sampling(seed=1))
        assert mock.sample_batch([request]) == search.policy(world).sample_batch([request])


def test_both_servers_of_a_seed_are_played_after_each_other(tmp_path: Path) -> None:
    config = CurveBench(output=tmp_path / "curve.json", seeds=2, first_seed=3)
    plans = [(plan.seed, plan.learns) for plan in plans_of(config)]
    assert plans == [(3, True), (3, False), (4, True), (4, False)]


def test_the_ratio_is_of_the_slow_replies() -> None:
    fast = Spread.of([0.001] * 90 + [0.010] * 10)
    slow = Spread.of([0.001] * 90 + [0.012] * 10)
    assert (fast.replies, fast.p50_ms, fast.p95_ms) == (100, 1.0, 10.0)
    compared = LatencyRow(part="guiding", learning=slow, plain=fast)
    assert compared.p95_ratio == pytest.approx(1.2)
