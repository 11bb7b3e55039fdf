"""Latency of steps at a server that learns, beside the same steps at one that does not.

Episodes alternate between the two servers, so that whatever else the machine does meets both.

bookkeeping    nothing is explored or fitted: what learning itself costs a step
collecting     the defaults: a tenth of the steps draws all candidates, and fits run meanwhile
guiding        a learned version guides, beside a server that was given the same version by name
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

import httpx
from pydantic import Field

from benchmarks.learning.agents import Game, SdkAgent, build_agent
from benchmarks.learning.curve import EnvironmentName, games_of, report_outcome
from benchmarks.learning.records import LatencyRow, LatencyRun, Spread
from benchmarks.learning.servers import qguide_serve, served_mock
from benchmarks.measurement.measure import describe_machine
from benchmarks.measurement.options import BenchOptions, OutputFile
from benchmarks.strangers.catalogue import STRANGERS, Stranger
from qguide.qnet.errors import ConfigError

Advance = Callable[[str], None]
Part = Literal["bookkeeping", "collecting", "guiding"]
PARTS: Final[tuple[Part, ...]] = ("bookkeeping", "collecting", "guiding")
_ADMIN: Final = {"QGUIDE_ADMIN": "true"}
_MOST_BEFORE: Final = 300
_STILL: Final = {"QGUIDE_LEARN_EXPLORATION": "0", "QGUIDE_LEARN_EVERY": "1000000"}


class LatencyBench(BenchOptions):
    """Options of `python -m benchmarks learning-latency`.

    Attributes:
        output: JSON file.
        environment: name of the environment.
        episodes: of each part, at each of the two servers.
        seed: of the order of tasks and of the mock's draws.
        command: the command line.
    """

    output: OutputFile
    environment: EnvironmentName = "errands"
    episodes: int = Field(default=200, ge=30)
    seed: int = 0
    command: str = ""


def latency_bench(config: LatencyBench, *, advance: Advance = lambda _: None) -> LatencyRun:
    """Measure every part.

    Raises:
        ConfigError: a server does not start, or exits, or nothing could be fitted.
    """
    rows: list[LatencyRow] = []
    for part in PARTS:
        advance(part)
        with TemporaryDirectory() as folder:
            rows.append(_measured(part, config, Path(folder)))
    run = LatencyRun(
        command=config.command,
        machine=describe_machine(device="cpu", threads=1),
        environment=config.environment,
        rows=tuple(rows),
    )
    config.output.write_text(run.model_dump_json(indent=1) + "\n")
    return run


def _measured(part: Part, config: LatencyBench, folder: Path) -> LatencyRow:
    stranger = STRANGERS[config.environment]
    with (
        served_mock(stranger.policy(), seed=config.seed) as upstream,
        _servers(part, config, stranger, upstream, folder) as urls,
    ):
        timed = [_Timed(url) for url in urls]
        for number, game in enumerate(games_of(stranger, config.seed, 2 * config.episodes)):
            timed[number % 2].play(game, f"{part}-{number}")
            game.environment.close()
    learning, plain = (Spread.of(each.reply_s) for each in timed)
    return LatencyRow(part=part, learning=learning, plain=plain)


@contextmanager
def _servers(
    part: Part, config: LatencyBench, stranger: Stranger, upstream: str, folder: Path
) -> Iterator[tuple[str, str]]:
    """Root URLs of the server that learns, and of the one beside it."""
    environment = _ADMIN | (_STILL if part == "bookkeeping" else {})
    learning = qguide_serve(
        upstream, folder / "learning", candidates=stranger.candidates, options=("--learn",), environment=environment
    )
    with learning as url:
        options: Sequence[str] = ()
        if part == "guiding":
            options = ("--scorer", str(_guided(url, config, folder)), "--unlicensed")
        elif part == "collecting":
            _order(url, "forbid")
        beside = qguide_serve(upstream, folder / "plain", candidates=stranger.candidates, options=options)
        with beside as plain:
            yield url, plain


def _guided(url: str, config: LatencyBench, folder: Path) -> Path:
    """Have a version guide; its checkpoint.

    Raises:
        ConfigError: nothing was fitted.
    """
    stranger = STRANGERS[config.environment]
    timed = _Timed(url)
    with httpx.Client(base_url=url, timeout=60) as http:
        for number, game in enumerate(games_of(stranger, config.seed + 1, _MOST_BEFORE)):
            timed.play(game, f"before-{number}")
            state = http.get("/v1/learning").raise_for_status().json()
            if state["fit"] and state["fit"]["licensed"]:
                version = _order(url, "promote")["version"]
                _order(url, "pin")
                [found] = (folder / "learning").rglob(f"versions/{version}")
                return found
    raise ConfigError(f"{_MOST_BEFORE} episodes gave no fit with a licence; try another seed")


class _Timed:
    """An agent at a server, and the time of each reply."""

    def __init__(self, url: str) -> None:
        self._agent: SdkAgent = build_agent("openai", url)
        self._http = httpx.Client(base_url=url, timeout=60)
        self.reply_s: list[float] = []

    def play(self, game: Game, episode_id: str) -> None:
        """Play an episode and post its outcome."""
        played = self._agent.play(game, episode_id)
        self.reply_s += played.reply_s
        report_outcome(self._http, episode_id, played.result)


def _order(url: str, order: str) -> dict[str, Any]:
    answer = httpx.post(f"{url}/v1/learning", json={"order": order}, timeout=60)
    state: dict[str, Any] = answer.raise_for_status().json()
    return state
