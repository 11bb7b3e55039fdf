"""`qguide serve`: run the HTTP server."""

import gc
import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pydantic import ValidationError
from pydantic_settings import SettingsError
from rich.console import Console

from qguide.commands.errors import exit_with, shown_errors
from qguide.qnet.policies.upstream_dialects import DIALECTS

if TYPE_CHECKING:
    from qguide.server.settings.settings import Settings

_SWITCH_INTERVAL_S = 0.0005
"""Interval at which Python threads give up the GIL. torch releases the GIL at every operation of
the device thread and must get it back from the event loop; with Python's default of 5 ms, a
forward pass of a few ms took several times as long on a busy event loop."""

Scorer = Annotated[
    str | None,
    typer.Option(
        "--q-model",
        "--scorer",
        help="embedded, scripted, none, votes, likelihood, validity, a checkpoint folder or "
        "judge:UPSTREAM; rules may stand before others (validity+votes). Without it only the "
        "embedded policy has a Q model.",
    ),
]
Upstream = Annotated[
    str | None,
    typer.Option(
        help="A chat model as the policy: "
        f"{', '.join(f'{one.provider.name}:MODEL' for one in DIALECTS.values() if one.provider)} or URL#MODEL; see "
        "QGUIDE_UPSTREAMS. --scorer judge:MODEL has it judge its own candidates."
    ),
]
Learn = Annotated[
    bool,
    typer.Option(
        "--learn",
        help="Learn from episodes that end with an outcome, and guide once a trial shows that "
        "it helps; see GET /v1/learning.",
    ),
]

_PLAIN_ERRORS: Final = frozenset(
    {
        "bool_parsing",
        "float_parsing",
        "greater_than",
        "greater_than_equal",
        "int_parsing",
        "less_than",
        "less_than_equal",
        "literal_error",
    }
)
"""pydantic's names for what is wrong with numbers and with words of a few."""

_PLAIN_NAMES = ("embedded", "scripted", "none", "votes", "likelihood", "validity", "judge")


def serve(
    host: Annotated[str | None, typer.Option(help="Address to bind; QGUIDE_HOST.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind; QGUIDE_PORT.")] = None,
    policy: Annotated[str | None, typer.Option(help="embedded, scripted, a checkpoint folder or an upstream.")] = None,
    q_model: Scorer = None,
    upstream: Upstream = None,
    vllm: Annotated[
        str | None, typer.Option(help="A model to serve with vLLM as the policy; see QGUIDE_VLLM_PYTHON.")
    ] = None,
    learn: Learn = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Accept other machines without API keys.")] = False,
    unlicensed: Annotated[bool, typer.Option("--unlicensed", help="Serve Q models without a licence, too.")] = False,
) -> None:
    """Run the HTTP server; all other settings are QGUIDE_… environment variables."""
    # torch's idle threads spin by default, which slows everything else on a small machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

    given: dict[str, Any] = {
        "host": host,
        "port": port,
        "vllm": vllm,
        "policy": None if vllm is None else "vllm",
        "insecure": insecure or None,
        "unlicensed": unlicensed or None,
    }
    given |= models_given(policy, q_model, upstream, learn=learn)
    console = Console(stderr=True)
    _run(read_settings({name: v for name, v in given.items() if v is not None}, console), console)


def models_given(policy: str | None, q_model: str | None, upstream: str | None, *, learn: bool) -> dict[str, Any]:
    """The settings that the options about models stand for."""
    given: dict[str, Any] = {}
    if upstream is not None:
        from qguide.server.settings.remote_models import named_upstream

        with shown_errors(config_status=2):
            name, fields = named_upstream(upstream)
        given |= {"upstreams": {name: fields}, "policy": name}
    if policy is not None:
        given["policy"] = policy
    if q_model is not None:
        given["q_models"] = {_name_of(q_model): q_model}
    if learn:
        given["learn"] = True
    return given


def _name_of(scorer: str) -> str:
    """Name of the Q model that --scorer gives; `default` stays an alias, which can be moved."""
    kind = scorer.partition(":")[0]
    return kind if kind in _PLAIN_NAMES else "scorer"


def read_settings(given: dict[str, Any], console: Console) -> "Settings":
    """Settings from the environment, overridden by the command's options."""
    from qguide.server.settings.settings import Settings
    from qguide.server.settings.unknown_variables import check_names, check_values

    with shown_errors():
        known = Settings.model_fields
        for warning in (*check_names(os.environ, known), *check_values(os.environ, known)):
            console.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)
    try:
        with shown_errors():
            return Settings(**given)
    except SettingsError as error:
        remedy = "write maps and lists as JSON, without line breaks in strings"
        exit_with(f"{error}: {remedy}", 2, error)
    except ValidationError as error:
        console.print(_reasons(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from error


def _run(settings: "Settings", console: Console) -> None:
    from qguide.commands.playground_games import games_of
    from qguide.server.app import create_app
    from qguide.server.http.keys import KeyFile
    from qguide.server.http.server import DrainingServer, bind, close, port_of, raise_descriptor_limit, server_config
    from qguide.server.learning.service import check_learning
    from qguide.server.observability.logs import configure_logging
    from qguide.server.q_models.build import build_models
    from qguide.server.settings.settings import NONE
    from qguide.server.upstreams.vllm_process import start_vllm

    configure_logging(settings.log_level)
    with ExitStack() as stack:
        with shown_errors(config_status=1):
            # Both before the models, which may take minutes to load.
            if settings.keys_file is not None:
                KeyFile(settings.keys_file)
            if settings.learn:
                check_learning(settings)
            sockets = bind(settings.host, settings.port)
            stack.callback(close, sockets)
            settings, process = start_vllm(settings)
            if process is not None:
                stack.callback(process.close)
            games = games_of(settings)
            models = build_models(settings)
            app = create_app(settings, build=lambda _: models, vllm=process, games=games)
        q_models = ", ".join(dict.fromkeys(q_model.name for q_model in models.q_models))
        served = models.policy.name + (f" with {q_models}" if q_models != NONE else ", unguided,")
        address = f"http://{settings.host}:{port_of(sockets)}"
        console.print(f"{served} on {address} (/docs)", markup=False)
        if settings.learn:
            where = f"{address}/v1/learning, episodes in {settings.episodes_folder}"
            console.print(f"learning: {where}", markup=False, soft_wrap=True)
        raise_descriptor_limit(settings.max_connections)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        # What exists by now lives as long as the server. A full collection that walks it stops
        # every request for 70 ms, and for 240 ms once torch is imported.
        gc.collect()
        gc.freeze()
        config = server_config(app, settings)
        delay_s = settings.drain_delay_s
        DrainingServer(config, app.state.drain, delay_s=delay_s, ends_hard=True).run(sockets)


def _reasons(error: ValidationError) -> str:
    """A line for each setting that is wrong, by the name of its variable.

    The value is shown where it is to be a number or one of a few words, and so can hold no secret.
    """
    lines = []
    for defect in error.errors():
        place = "".join(f".{part}" for part in defect["loc"][1:])
        reason = defect["msg"].removeprefix("Value error, ")
        if defect["loc"]:
            variable = f"QGUIDE_{str(defect['loc'][0]).upper()}{place}"
            shown = f" is {str(defect['input'])[:40]!r}" if defect["type"] in _PLAIN_ERRORS else ""
            reason = f"{variable}{shown}: {reason}"
        lines.append(f"error: {reason}")
    return "\n".join(lines)
