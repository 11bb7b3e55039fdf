"""`qguide demo`: a fake upstream, the server with its page, and an episode; `qguide fake-upstream`.

Nothing is downloaded and no model is run: replies and Q-values come from a script. With `--race`
the embedded models play ALFWorld games in the page instead.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer

from qguide.commands.errors import exit_with
from qguide.server.chat.fake_replies import Fault

if TYPE_CHECKING:
    import uvicorn

REPLIES: Final = (
    "Thought: I should look around first.\nAction: look",
    "Thought: I should check what I carry.\nAction: inventory",
    "Thought: The mug may be on the desk.\nAction: go to desk 1",
    "Thought: There it is.\nAction: take mug 1 from desk 1",
    "Thought: It belongs on the shelf.\nAction: put mug 1 in shelf 1",
)
"""Script of the fake upstream, of which a step draws three in turn."""
OBSERVATIONS: Final = (
    "You see a desk 1, and a shelf 1.\n\nYour task is to: put the mug in the shelf.",
    "You arrive at desk 1. On the desk 1, you see a mug 1, and a pen 1.",
    "You pick up the mug 1 from the desk 1.",
)
LAST_OBSERVATION: Final = "You put the mug 1 in the shelf 1."
EPISODE: Final = "demo"
_CANDIDATES: Final = 3
_START_S: Final = 60.0
_FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)


def demo(
    port: Annotated[int, typer.Option(help="Port to bind on loopback; 0 picks a free one.")] = 8000,
    race: Annotated[
        bool, typer.Option("--race", help="The embedded models, and ALFWorld games for the page's race.")
    ] = False,
) -> None:
    """Try the server without a model: a fake upstream, the page, and a recorded episode."""
    from qguide.commands.playground_games import games_of
    from qguide.qnet.errors import QGuideError
    from qguide.server.app import create_app
    from qguide.server.chat.fake_openai import FakeUpstream
    from qguide.server.http.server import DrainingServer, bind, close, server_config
    from qguide.server.observability.logs import configure_logging
    from qguide.server.q_models.build import build_models
    from qguide.server.settings.settings import Settings

    configure_logging("WARNING")
    # uvicorn hands signals on once it has ended; the folder is to be removed then.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="qguide-demo-")))
        upstream = stack.enter_context(_serving_upstream(FakeUpstream(REPLIES).app()))
        try:
            settings = Settings(
                host="127.0.0.1",
                port=port,
                episodes_dir=folder,
                keys_file=None,
                admin=True,  # the page lists what is recorded; the server listens on loopback
                **({} if race else _scripted(upstream)),
            )
            # Before the games and the models, which take seconds to load.
            sockets = bind(settings.host, settings.port)
            stack.callback(close, sockets)
            games = games_of(settings)
            models = build_models(settings)
            app = create_app(settings, build=lambda _: models, games=games)
        except (ValueError, QGuideError) as error:
            exit_with(f"{error}; the demo takes QGUIDE_… variables, too", 2, error)
        server = DrainingServer(server_config(app, settings), app.state.drain, delay_s=0)
        show = _show_race if race else _show_episode
        Thread(target=_show, args=(server, folder, show), daemon=True).start()
        try:
            server.run(sockets)
        except KeyboardInterrupt:
            typer.echo("bye")


def _scripted(upstream: str) -> dict[str, Any]:
    from qguide.server.settings.settings import SCRIPTED

    return {
        "policy": EPISODE,
        "upstreams": {EPISODE: {"url": f"{upstream}/v1", "model": "fake"}},
        "q_models": {EPISODE: SCRIPTED},
        "num_candidates": _CANDIDATES,
    }


@contextmanager
def _serving_upstream(app: Any) -> Iterator[str]:
    """The address of the fake upstream, on a thread and a free port."""
    import uvicorn

    config = uvicorn.Config(app, port=0, log_config=None, access_log=False, ws="none")
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield _address(server)
    finally:
        server.should_exit = True
        thread.join()


def _address(server: "uvicorn.Server") -> str:
    """The address of a server once it listens."""
    deadline = time.monotonic() + _START_S
    while not server.started:
        if server.should_exit or time.monotonic() > deadline:
            raise TimeoutError("the server did not start")
        time.sleep(0.05)
    port: int = server.servers[0].sockets[0].getsockname()[1]
    return f"http://127.0.0.1:{port}"


def _show(server: "uvicorn.Server", folder: Path, show: Callable[[str, Path], None]) -> None:
    """Say what there is to look at once the server listens; nothing if it did not start."""
    import httpx

    with suppress(TimeoutError):
        try:
            show(_address(server), folder)
        except httpx.HTTPError as error:
            typer.echo(f"the episode failed: {error}", err=True)
            server.should_exit = True


def _show_episode(url: str, folder: Path) -> None:
    typer.echo(f"QGuide {url} guides a fake upstream; it has played an episode of three steps:\n")
    for step, line in enumerate(play(url), 1):
        typer.echo(f"  {step}  {line}")
    (offers,) = folder.glob("offers-*.jsonl")
    (trees,) = folder.glob("trees-*.jsonl")
    typer.echo(
        "\nReplies and Q-values are a fixed script about a mug and a shelf: whatever task you or"
        "\nyour agent send, the answer is one of its five lines. To guide your own model:"
        "\nqguide serve --upstream openai:MODEL --scorer judge:MODEL\n"
        f"\nthe page       {url}/playground"
        f"\nthe episode    {url}/playground#records, recorded in"
        f"\n               {offers}\n               {trees}"
        f"\nfor an agent   base URL {url}/v1, model {EPISODE}, any key"
        "\n\nCtrl-C ends it and removes the files."
    )


def _show_race(url: str, folder: Path) -> None:
    typer.echo(
        f"one game       {url}/playground#play"
        f"\nthe race       {url}/playground#race"
        f"\nthe page       {url}/playground"
        f"\nepisodes       {folder}"
        "\n\nCtrl-C ends it and removes the files."
    )


def play(url: str) -> Iterator[str]:
    """Play the episode as an agent does; yields the candidates of each step with their Q."""
    import httpx

    options = {"episode_id": EPISODE, "num_candidates": _CANDIDATES, "greedy_candidate": False}
    messages: list[dict[str, Any]] = []
    with httpx.Client(base_url=url, timeout=_START_S, trust_env=False) as client:
        for observation in OBSERVATIONS:
            messages.append({"role": "user", "content": observation})
            body = {"messages": messages, **options}
            answer = client.post("/v1/act", json=body).raise_for_status().json()
            messages.append({"role": "assistant", "content": answer["action"]})
            yield "   ".join(
                f"{'*' if index == answer['chosen'] else ' '}{one['q_value']:.2f} {_action(one)}"
                for index, one in enumerate(answer["candidates"])
            )
        outcome = {"reward": 1.0, "terminated": True, "observation": LAST_OBSERVATION}
        client.post(f"/v1/episodes/{EPISODE}/outcome", json=outcome).raise_for_status()


def _action(candidate: dict[str, Any]) -> str:
    return str(candidate["message"]["content"]).rpartition("Action: ")[2]


def fake_upstream(
    port: Annotated[int, typer.Option(help="Port to bind on loopback.")] = 8001,
    fault: Annotated[str, typer.Option(help=f"Fault to inject: one of {', '.join(_FAULTS[1:])}.")] = "",
    times: Annotated[int | None, typer.Option(help="Number of faults; without it every request fails.")] = None,
    delay_s: Annotated[float, typer.Option(help="Time that every answer takes.")] = 0.0,
    piece_s: Annotated[float, typer.Option(help="Time before each piece of a streamed answer.")] = 0.0,
    reply: Annotated[
        list[str] | None, typer.Option(help="A reply of the script, in place of the built-in one.")
    ] = None,
) -> None:
    """Run a fake OpenAI-compatible server, to try `QGUIDE_UPSTREAMS` without a model."""
    import uvicorn

    from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream

    known = next((each for each in _FAULTS if each == fault), None)
    if known is None:
        raise typer.BadParameter(f"{fault!r} is not one of {', '.join(_FAULTS[1:])}")
    replies = tuple(reply or DEFAULT_REPLIES)
    fake = FakeUpstream(replies, fault=known, faults_left=times, delay_s=delay_s, piece_s=piece_s)
    uvicorn.run(fake.app(), host="127.0.0.1", port=port)
