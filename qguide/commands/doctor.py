"""`qguide doctor`: checks what the server needs, with the remedies in the order to take them.

It takes the options and settings of `qguide serve`, loads what that would load, draws one reply and
has each Q model score it.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple, get_args

import typer
from rich.console import Console

from qguide.commands.serve import Learn, Scorer, Upstream, models_given, read_settings
from qguide.qnet.errors import QGuideError
from qguide.qnet.packages import PACKAGES, Kind, install, plugins

if TYPE_CHECKING:
    from qguide.qnet.types import Candidate, ScoreResult
    from qguide.server.q_models.registry import Models
    from qguide.server.settings.settings import Settings

Status = Literal["ok", "note", "fault"]

_LEAST_FREE: Final = 1024**3
_TASK: Final = "You are in a room. You see a desk 1. Your task is to: find the mug."


class DoctorFinding(NamedTuple):
    """Result of one check; of a fault `found` has the reason and the remedy."""

    status: Status
    checked: str
    found: str


def doctor(
    policy: Annotated[str | None, typer.Option(help="embedded, scripted, a checkpoint folder or an upstream.")] = None,
    q_model: Scorer = None,
    upstream: Upstream = None,
    learn: Learn = False,
) -> None:
    """Check packages, plug-ins, settings, keys, disk, Redis, models, upstreams and judges.

    It takes the settings of `serve`, asks an upstream for one reply, and exits with 1 at a fault.
    """
    from qguide.server.observability.logs import configure_logging

    given = models_given(policy, q_model, upstream, learn=learn)
    settings = read_settings(given, Console(stderr=True))
    configure_logging("ERROR")
    found = list(examine(settings))
    _show(found, Console(soft_wrap=True, highlight=False))
    if any(one.status == "fault" for one in found):
        raise typer.Exit(1)


def _show(found: list[DoctorFinding], console: Console) -> None:
    """Print a line for each check, then the faults by number."""
    wide = max(len(one.checked) for one in found)
    for one in found:
        text = "see below" if one.status == "fault" else one.found
        console.print(f"{one.status:<6} {one.checked:<{wide}}  {text}", markup=False)
    faults = [one for one in found if one.status == "fault"]
    if not faults:
        console.print("\nno fault found")
        return
    console.print("\nto mend, the first one first:")
    for number, one in enumerate(faults, 1):
        console.print(f"{number}. {one.checked}: {one.found}", markup=False)


def examine(settings: "Settings") -> Iterator[DoctorFinding]:
    """Run all checks, those first that others depend on."""
    yield from _packages()
    yield from _plugins()
    yield _keys(settings)
    if (folder := settings.episodes_folder) is not None:
        yield _disk(folder)
    yield from _models(settings)


def _packages() -> Iterator[DoctorFinding]:
    for extra, packages in PACKAGES.items():
        missing = sorted(one for one in packages if find_spec(one) is None)
        if missing:
            names = ", ".join(missing)
            yield DoctorFinding("note", f"packages of {extra}", f"without {names}; {install(extra)}")
        else:
            yield DoctorFinding("ok", f"packages of {extra}", ", ".join(sorted(packages)))


def _plugins() -> Iterator[DoctorFinding]:
    for kind in get_args(Kind):
        try:
            names = ", ".join(sorted(plugins(kind)))
        except QGuideError as error:
            yield DoctorFinding("fault", f"plug-ins: {kind}", str(error))
        else:
            if names:
                yield DoctorFinding("ok", f"plug-ins: {kind}", names)


def _keys(settings: "Settings") -> DoctorFinding:
    from qguide.server.http.keys import KeyFile, read_keys

    if settings.keys_file is None:
        who = "whoever can reach it" if settings.insecure else "this machine alone"
        return DoctorFinding("note", "API keys", f"none: {who} may ask (QGUIDE_KEYS_FILE)")
    try:
        KeyFile(settings.keys_file)
        keys = len(read_keys(settings.keys_file).keys)
    except QGuideError as error:
        return DoctorFinding("fault", "API keys", str(error))
    return DoctorFinding("ok", "API keys", f"{keys} in {settings.keys_file}")


def _disk(folder: Path) -> DoctorFinding:
    """Check that episodes can be written; the folder itself is left for the server to make."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        probe = there / f".qguide-doctor-{id(folder)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        remedy = "let the server write there, or set QGUIDE_EPISODES_DIR to another folder"
        return DoctorFinding("fault", "episodes", f"{there}: {error.strerror}; {remedy}")
    free = shutil.disk_usage(there).free
    text = f"{folder}, {free / _LEAST_FREE:,.1f} GiB free"
    return DoctorFinding("ok" if free >= _LEAST_FREE else "note", "episodes", text)


def _models(settings: "Settings") -> Iterator[DoctorFinding]:
    from qguide.server.q_models.build import build_models

    if settings.vllm:
        there = settings.vllm_python.exists()
        text = "is there" if there else "is missing; QGUIDE_VLLM_PYTHON names a Python with vLLM"
        yield DoctorFinding("ok" if there else "fault", "vLLM", f"{settings.vllm_python} {text}")
        yield DoctorFinding("note", "models", "not loaded, as the server starts vLLM itself")
        return
    try:
        models = build_models(settings)
    except QGuideError as error:
        yield DoctorFinding("fault", "models", str(error))
        return
    names = ", ".join(one.id for one in models.q_models)
    yield DoctorFinding("ok", "models", f"{models.policy.name} draws; Q models: {names}")
    yield from asyncio.run(_asked(models, settings))


async def _asked(models: "Models", settings: "Settings") -> list[DoctorFinding]:
    try:
        return [one async for one in _answers(models, settings)]
    finally:
        await models.close()


async def _answers(models: "Models", settings: "Settings") -> AsyncIterator[DoctorFinding]:
    if models.runtime.redis is not None:
        async with models.runtime.redis.watched():
            up = models.runtime.redis.up
        remedy = "start it, or correct QGUIDE_REDIS_URL; until then each replica counts for itself"
        yield (
            DoctorFinding("ok", "Redis", "answers")
            if up
            else DoctorFinding("fault", "Redis", f"does not answer; {remedy}")
        )
    for upstream in models.remote.values():
        problem = await upstream.health_problem()
        named = f"upstream {upstream.name}"
        if problem:
            remedy = "start it, or correct its address and key"
            yield DoctorFinding("fault", named, f"{problem}; {remedy}")
        else:
            yield DoctorFinding("ok", named, "answers")
    async for finding in _step(models, settings):
        yield finding


async def _step(models: "Models", settings: "Settings") -> AsyncIterator[DoctorFinding]:
    from qguide.qnet.types import Message, Sampling, ScoreRequest
    from qguide.server.q_models.without_model import NoQModel, unguided_policies

    history = (Message("user", _TASK),)
    reply = Message("assistant", "Action: go to desk 1")
    policy, sampling = models.policy, Sampling(max_tokens=None)
    yield await _tried(f"policy {policy.name}", policy.model.sample(history, n=1, sampling=sampling), settings)
    for q_model in models.q_models:
        if not isinstance(q_model, NoQModel):
            asked = q_model.score(ScoreRequest(history, (reply,)))
            yield await _tried(f"Q model {q_model.name}", asked, settings)
    if unguided := unguided_policies(settings):
        yield DoctorFinding("note", "guidance", unguided)


async def _tried(named: str, work: "Awaitable[list[Candidate] | ScoreResult]", settings: "Settings") -> DoctorFinding:
    try:
        async with asyncio.timeout(settings.timeout_s):
            found = await work
    except TimeoutError:
        reason = "no answer in time (QGUIDE_TIMEOUT_S); look at the log of its server"
        return DoctorFinding("fault", named, reason)
    except QGuideError as error:
        return DoctorFinding("fault", named, str(error))
    said = "draws a reply" if isinstance(found, list) else f"scores: Q = {found.q_values[0]:.3g}"
    return DoctorFinding("ok", named, said)
