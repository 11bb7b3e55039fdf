"""Success over episodes of unmodified agents, at a server that learns and at one that does not."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, NamedTuple

import httpx
from fastapi.testclient import TestClient
from pydantic import Field

from benchmarks.learning.agents import AgentName, Game, Rewriting, SdkAgent, build_agent
from benchmarks.learning.records import CurveRow, CurveRun, PhaseChange
from benchmarks.learning.servers import ChangingMock, app_in_process, qguide_serve, served_mock, wait_for_fits
from benchmarks.measurement.measure import describe_machine
from benchmarks.measurement.options import BenchOptions, OutputFile, Words, choice_of
from benchmarks.strangers.catalogue import STRANGERS, Stranger
from qguide.training.environment import StepResult

Advance = Callable[[str], None]
EnvironmentName = Annotated[str, choice_of(lambda: tuple(STRANGERS))]
ServerName = Literal["learning", "plain"]
_LEARN = ("--learn",)


class CurveBench(BenchOptions):
    """Options of `python -m benchmarks learning-curve`.

    Attributes:
        output: JSON file; the plot is written beside it. Rows that it has are not played again.
        environments: names of the environments.
        agents: SDKs of the agents.
        seeds: number of seeds, of the order of tasks and of the mock's draws.
        first_seed: the first of them.
        episodes: of each row.
        delay_s: time of every answer of the model. Hosted ones take seconds; a model that answers
            at once plays dozens of episodes during one fit.
        servers: `learning` has `--learn`, `plain` has not.
        changes_at: episodes after which other things are true, of which the mock knows others; 0:
            that never happens.
        in_process: the server is in this process, the model answers at once, and a fit ends before
            the next episode. A row then depends on its seed alone.
        tell_earned: the agent tells in the header X-QGuide-Earned of each request what the episode
            would be worth if it ended then, which environments with a graded outcome say.
        rewrites: what the agent of OpenAI's SDK changes in its messages from request to request: nothing; the time of
            day in its system prompt (clock) or in the task (task), a reminder in its newest message (reminder), or
            tool results but the newest three, which it cuts (cut).
        llm: folder of a language model that plays in place of the mocks.
        candidates: M; None: as many as the environment is measured with.
        command: the command line.
    """

    output: OutputFile
    environments: Annotated[tuple[EnvironmentName, ...], Words] = ("errands",)
    agents: Annotated[tuple[AgentName, ...], Words] = ("openai",)
    seeds: int = Field(default=5, ge=1)
    first_seed: int = Field(default=0, ge=0)
    episodes: int = Field(default=500, ge=1)
    delay_s: float = Field(default=0.3, ge=0)
    servers: Annotated[tuple[ServerName, ...], Words] = ("learning", "plain")
    changes_at: int = Field(default=0, ge=0)
    in_process: bool = False
    tell_earned: bool = False
    rewrites: Rewriting = "nothing"
    llm: Path | None = None
    candidates: int | None = Field(default=None, ge=2)
    command: str = ""

    def stranger(self, name: str) -> Stranger:
        """The environment of a name, as it is measured here."""
        found = STRANGERS[name]
        return replace(found, llm=self.llm, candidates=self.candidates or found.candidates)


class Plan(NamedTuple):
    """One row to play."""

    environment: str
    agent: AgentName
    seed: int
    learns: bool


def plans_of(config: CurveBench) -> list[Plan]:
    """The rows of a run, those of a seed together."""
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    learns = [server == "learning" for server in config.servers]
    return [Plan(*one) for one in product(config.environments, config.agents, seeds, learns)]


def curve_bench(config: CurveBench, *, advance: Advance = lambda _: None) -> CurveRun:
    """Play every row; an interrupted run is written with `complete: false`, and goes on from there.

    Args:
        advance: called with a description before each row.

    Raises:
        ConfigError: a server does not start, or exits.
    """
    kept = CurveRun.model_validate_json(config.output.read_text()) if _begun(config) else None
    run = CurveRun(
        complete=False,
        command=config.command,
        machine=describe_machine(device="cpu", threads=1),
        rows=kept.rows if kept else (),
    )
    done = {(row.environment, row.agent, row.seed, row.learns) for row in run.rows}
    for plan in plans_of(config):
        advance(f"{plan.environment}, {plan.agent}, seed {plan.seed}, learns: {plan.learns}")
        if plan in done:
            continue
        with TemporaryDirectory() as folder:
            row = play_row(plan, config, Path(folder))
        run = run.model_copy(update={"rows": (*run.rows, row)})
        config.output.write_text(run.model_dump_json(indent=1) + "\n")
    run = run.model_copy(update={"complete": True})
    config.output.write_text(run.model_dump_json(indent=1) + "\n")
    return run


def _begun(config: CurveBench) -> bool:
    return config.output.exists() and bool(config.output.read_text().strip())


def play_row(plan: Plan, config: CurveBench, folder: Path) -> CurveRow:
    """Play episodes at one server, and post their outcomes."""
    stranger = config.stranger(plan.environment)
    mock = ChangingMock(stranger.policy())
    before = config.changes_at or config.episodes
    told: dict[str, Any] = {"tells_earned": config.tell_earned, "rewrites": config.rewrites}
    games = chain(
        games_of(stranger, plan.seed, before, **told),
        games_of(stranger, plan.seed, config.episodes - before, world=1, **told),
    )
    began = time.monotonic()
    with (
        served_mock(mock, seed=plan.seed, delay_s=0.0 if config.in_process else config.delay_s) as upstream,
        _opened(plan, config, upstream, folder) as (agent, http),
    ):
        outcomes: list[float] = []
        watch = _Watch(http) if plan.learns else None
        for number, game in enumerate(games):
            if number == before:
                mock.now = stranger.policy(1)
            episode_id = f"{plan.environment}-{plan.seed}-{number}"
            played = agent.play(game, episode_id)
            game.environment.close()
            outcomes.append(played.result.reward)
            report_outcome(http, episode_id, played.result)
            if watch:
                watch.look(number + 1)
    return CurveRow(
        environment=plan.environment,
        agent=plan.agent,
        seed=plan.seed,
        learns=plan.learns,
        changed_at=config.changes_at,
        told_earned=config.tell_earned,
        rewrites=config.rewrites,
        in_process=config.in_process,
        outcomes=tuple(outcomes),
        phases=tuple(watch.changes) if watch else (),
        state=watch.state if watch else {},
        seconds=time.monotonic() - began,
    )


@contextmanager
def _opened(plan: Plan, config: CurveBench, upstream: str, folder: Path) -> Iterator[tuple[SdkAgent, Any]]:
    """An agent at a server during the block, and a client of the server."""
    candidates = config.stranger(plan.environment).candidates
    if config.in_process:
        with app_in_process(upstream, folder, candidates=candidates, learn=plan.learns, seed=plan.seed) as app:
            yield build_agent(plan.agent, str(app.base_url), app), app
        return
    options = _LEARN if plan.learns else ()
    with (
        qguide_serve(upstream, folder, candidates=candidates, options=options) as url,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        yield build_agent(plan.agent, url), http


def games_of(stranger: Stranger, seed: int, episodes: int, *, world: int = 0, **told: Any) -> Iterator[Game]:
    """Episodes of tasks that are drawn at random, so that every task comes again and again."""
    suites = [stranger.suite(new=new, world=world) for new in (False, True)]
    tasks = [(suite, task) for suite in suites for task in suite.tasks]
    chance = Random(f"curve {seed}")
    for _ in range(episodes):
        suite, task = chance.choice(tasks)
        chat = suite.environment.chat
        yield Game(suite.make(task), chat, stranger.max_steps, **told)


def report_outcome(http: Any, episode_id: str, result: StepResult) -> None:
    """Post the outcome of an episode."""
    http.post(
        f"/v1/episodes/{episode_id}/outcome",
        json={"reward": result.reward, "terminated": result.terminated, "observation": result.observation},
    ).raise_for_status()


class _Watch:
    """GET /v1/learning after each episode, and in this process after the fit that follows it.

    Attributes:
        state: its latest answer.
        changes: of the phase.
    """

    def __init__(self, http: Any) -> None:
        self._http = http
        self.state: dict[str, Any] = {}
        self.changes: list[PhaseChange] = []

    def look(self, episode: int) -> None:
        """Note the phase after an episode."""
        if isinstance(self._http, TestClient):
            wait_for_fits(self._http)
        self.state = self._http.get("/v1/learning").raise_for_status().json()
        before = self.changes[-1].phase if self.changes else "collecting"
        if self.state["phase"] != before:
            self.changes.append(PhaseChange(episode=episode, phase=self.state["phase"], reason=self.state["reason"]))
