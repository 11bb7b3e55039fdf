"""A load test says what clients really saw: rates, latencies, the server's part, and errors."""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner, Result

from benchmarks.commands.app import app
from benchmarks.measurement.measure import describe_machine
from benchmarks.measurement.records import Endpoint, LoadRow, ServeRun
from benchmarks.serve.agents import Agent
from benchmarks.serve.load import Load, RequestTiming, measure_load, summarize
from benchmarks.serve.report import plot_serve
from qguide.server.app import create_app
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.support.serving import serving_app

LOAD = Load(url="", models="scripted", endpoint="act", clients=1, seconds=10.0, warm_up_s=0.0, candidates=3, seed=0)
FAKES = Settings(policy=SCRIPTED, q_models={"demo@1": SCRIPTED}, max_candidates=5)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with the scripted models."""
    with serving_app(create_app(FAKES)) as started:
        yield started


def bench_serve(*options: str) -> Result:
    return CliRunner().invoke(app, ["serve", *options])


def summary(*asked: RequestTiming) -> LoadRow:
    """Of ten seconds that begin at 100."""
    return summarize(LOAD, asked, from_s=100.0, cpu_share=0.0)


def test_overhead_is_the_clients_clock_without_drawing_and_scoring() -> None:
    row = summary(RequestTiming(101.0, 101.5, sample_ms=300.0, score_ms=150.0))
    assert row.latency_ms
    assert row.overhead_ms
    assert row.latency_ms.p50 == pytest.approx(500.0)
    assert row.overhead_ms.p50 == pytest.approx(50.0)
    assert (row.sample_ms, row.score_ms) == (300.0, 150.0)


def test_percentiles_are_the_least_values_that_so_many_do_not_exceed() -> None:
    row = summary(*(RequestTiming(101.0, 101.0 + ms / 1e3) for ms in range(200, 0, -1)))
    assert row.latency_ms
    found = (row.latency_ms.p50, row.latency_ms.p95, row.latency_ms.p99)
    assert found == pytest.approx((100.0, 190.0, 198.0))


def test_what_began_before_it_counted_has_no_latency_but_its_answer_counts_for_the_rate() -> None:
    row = summary(RequestTiming(99.0, 105.0), RequestTiming(109.0, 130.0))
    assert row.requests == 1
    assert row.latency_ms
    assert row.latency_ms.p50 == pytest.approx(21_000.0)
    assert row.requests_per_s == pytest.approx(1 / 10)


def test_errors_are_counted_by_kind_and_are_no_answers() -> None:
    row = summary(
        RequestTiming(101.0, 101.1, "429"), RequestTiming(102.0, 102.1, "429"), RequestTiming(103.0, 104.0, "X")
    )
    assert row.errors == {"429": 2, "X": 1}
    assert row.requests_per_s == 0
    assert (row.latency_ms, row.overhead_ms, row.sample_ms) == (None, None, None)


def test_an_agents_history_grows_until_it_begins_anew_and_no_two_agents_are_alike() -> None:
    agent, other = (Agent(candidates=3, seed=seed) for seed in (0, 1))
    assert agent.question("/v1/act")["messages"] != other.question("/v1/act")["messages"]
    turns = []
    for _ in range(12):
        question = agent.question("/v1/score")
        assert len(set(question["candidates"])) == 3
        turns.append(len(question["messages"]))
        agent.take({"chosen": 1})
    assert turns[:9] == list(range(1, 18, 2))
    assert turns[9:] == [1, 3, 5]


@pytest.mark.parametrize("endpoint", get_args(Endpoint))
def test_clients_ask_side_by_side_until_the_time_is_up(url: str, endpoint: Endpoint) -> None:
    load = Load(url, "url", endpoint, 3, 0.5, 0.1, candidates=3, seed=0)
    row = measure_load(load)
    assert row.requests >= 3
    assert row.errors == {}
    assert row.requests_per_s > 0
    assert row.latency_ms
    assert row.overhead_ms
    assert 0 < row.overhead_ms.p50 < row.latency_ms.p50 <= row.latency_ms.p95
    assert 0 < row.client_cpu_share <= 1.5


def test_more_clients_than_the_server_lets_one_caller_have_are_told_as_429() -> None:
    settings = FAKES.model_copy(update={"concurrent_requests": 1})
    with serving_app(create_app(settings)) as url:
        row = measure_load(Load(url, "url", "act", 8, 0.5, 0.0, candidates=3, seed=0))
    assert row.errors["429"] > 0


def test_a_server_that_is_gone_is_told_as_what_broke() -> None:
    row = measure_load(Load("http://127.0.0.1:9", "url", "act", 1, 0.1, 0.0, candidates=3, seed=0))
    assert set(row.errors) == {"ConnectionRefusedError"}


@pytest.mark.slow
def test_the_command_starts_a_server_prints_writes_and_draws(tmp_path: Path) -> None:
    output = tmp_path / "serve.json"
    done = bench_serve(
        *("--models", "scripted", "--clients", "1,2", "--seconds", "0.5", "--warm-up-s", "0.1"),
        *("--candidates", "3", "--output", str(output)),
    )
    assert done.exit_code == 0, done.output
    assert "scripted act" in done.output
    assert "over an idle server at 1 client, goal 1:" in " ".join(done.output.split())
    run = ServeRun.model_validate_json(output.read_text())
    assert run.complete
    assert [(row.endpoint, row.clients) for row in run.rows] == [("act", 1), ("act", 2), ("score", 1), ("score", 2)]
    assert all(row.requests_per_s > 0 and not row.errors for row in run.rows)
    assert all(row.latency_ms and row.latency_ms.p50 > 0 for row in run.rows)
    assert all(row.client_ms is not None and row.client_ms > 0 for row in run.rows)
    assert all((row.server_cpu_ms or 0) > (row.idle_cpu_ms or 0) > 0 for row in run.rows)
    assert "an idle server" in " ".join(done.output.split())
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_server_that_is_there_is_asked_by_its_url(url: str, tmp_path: Path) -> None:
    output = tmp_path / "serve.json"
    options = ("--url", url + "/", "--clients", "1", "--seconds", "0.2", "--warm-up-s", "0")
    done = bench_serve(*options, "--output", str(output))
    assert done.exit_code == 0, done.output
    assert {row.models for row in ServeRun.model_validate_json(output.read_text()).rows} == {"url"}


def test_a_load_without_answers_is_drawn_too(tmp_path: Path) -> None:
    run = ServeRun(
        complete=True,
        command="",
        machine=describe_machine(device="cpu", threads=1),
        seed=0,
        candidates=3,
        warm_up_s=0.0,
        rows=(summary(RequestTiming(101.0, 101.1, "429")),),
    )
    plot_serve(run, tmp_path / "serve.png")
    assert (tmp_path / "serve.png").is_file()


def test_a_server_that_refuses_what_it_is_asked_is_not_measured(url: str, tmp_path: Path) -> None:
    output = tmp_path / "serve.json"
    done = bench_serve("--url", url, "--candidates", "6", "--output", str(output))
    assert done.exit_code == 2
    said = " ".join(done.output.split())
    assert "answered /v1/act with 400" in said
    assert "ask for 1 to 5" in said
    assert not ServeRun.model_validate_json(output.read_text()).complete


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--clients", "0"), "greater than or equal to 1"),
        (("--clients", "two"), "should be a valid integer"),
        (("--models", "real"), "should be 'scripted' or 'embedded'"),
        (("--url", "http://127.0.0.1:9"), "the server cannot be reached (ConnectError); start it"),
    ],
)
def test_a_bad_option_is_refused_with_a_remedy(options: tuple[str, str], says: str, tmp_path: Path) -> None:
    done = bench_serve(*options, "--output", str(tmp_path / "serve.json"))
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())
