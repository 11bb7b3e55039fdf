"""The operator's redaction function: whatever it does, the server goes on."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from qguide.qnet.errors import ConfigError
from qguide.qnet.types import Message
from qguide.server.app import create_app
from qguide.server.episodes.recorder import EpisodeRecorder
from qguide.server.episodes.redaction import RedactionError, RedactionProcesses
from qguide.server.episodes.redaction_worker import write_message
from qguide.server.episodes.service import Episodes
from qguide.server.episodes.state import Offer, Outcome
from qguide.server.episodes.store import MemoryEpisodeStore
from qguide.server.observability.metrics import Metrics
from tests.support import redaction_hooks
from tests.support.redaction_hooks import HANGS, SECRET
from tests.unit.server.conftest import FAKES

HOOKS = redaction_hooks.__name__
PATIENCE_S = 60.0


@asynccontextmanager
async def hook(name: str, *, timeout_s: float = PATIENCE_S) -> AsyncIterator[RedactionProcesses]:
    redactor = RedactionProcesses(f"{HOOKS}:{name}", timeout_s=timeout_s)
    try:
        yield redactor
    finally:
        await redactor.close()


async def step(episodes: Episodes, episode_id: str, said: str) -> None:
    history = (Message("user", said),)
    offer = Offer(at=1, q_values={"go": 0.5}, chosen="go", q_model="q@0")
    await episodes.end_step(episode_id, history, offer)


async def test_texts_come_back_redacted_in_their_order() -> None:
    async with hook("hide") as redactor:
        texts = [f"{number}: {SECRET}\n“ü”" for number in range(100)] + ["x" * 1_000_000]
        redacted = await redactor.redact(texts)
        assert redacted == [text.replace(SECRET, "***") for text in texts]
        assert await redactor.redact([]) == []


@pytest.mark.parametrize("name", ["fail", "nothing", "leave", "interrupt", "die", "half"])
async def test_a_hook_that_fails_ends_nothing_but_itself(name: str) -> None:
    async with hook(name) as redactor:
        for _ in range(2):
            with structlog.testing.capture_logs() as logs, pytest.raises(RedactionError, match=r"failed$") as refused:
                await redactor.redact([SECRET])
            assert SECRET not in f"{logs} {refused.value}"


async def test_a_hook_that_takes_too_long_is_given_up_and_started_again() -> None:
    async with hook("hang", timeout_s=3) as redactor:
        with pytest.raises(RedactionError, match=r" 3 s .*QGUIDE_EPISODES_REDACT_TIMEOUT_S"):
            await redactor.redact([HANGS])
        assert not redactor._running
        assert await redactor.redact(["well"]) == ["well"]


async def test_a_hook_that_hangs_holds_up_no_other_outcome_and_not_the_end(tmp_path: Path) -> None:
    async with hook("hang", timeout_s=3600) as redactor:
        recorder = EpisodeRecorder(tmp_path, max_file_bytes=10**6, max_files=9, redactor=redactor)
        store = MemoryEpisodeStore(max_bytes=10**6, ttl_s=60)
        episodes = Episodes(store, recorder, Metrics())
        await step(episodes, "hung", HANGS)
        await step(episodes, "well", "look")
        hung = asyncio.create_task(episodes.close("hung", Outcome(reward=1.0)))
        async with asyncio.timeout(PATIENCE_S):
            while not redactor._running:
                await asyncio.sleep(0.01)
            assert (await episodes.close("well", Outcome(reward=1.0))).episode.recorded
            assert not hung.done()
            await episodes.settle(timeout_s=0.1)
            with pytest.raises(asyncio.CancelledError):
                await hung
        assert not redactor._running
    assert len(list(tmp_path.glob("trees-*.jsonl"))) == 1


def test_a_hook_that_hangs_ends_after_the_server_has_gone() -> None:
    command = [sys.executable, "-m", "qguide.server.episodes.redaction_worker", f"{HOOKS}:hang", "0.2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as worker:
        assert worker.stdin is not None
        write_message(worker.stdin, [HANGS])
        worker.stdin.close()
        assert worker.wait(PATIENCE_S) == -signal.SIGALRM


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_module:f", "ModuleNotFoundError"),
        (f"{HOOKS}:missing", "AttributeError"),
        (f"{HOOKS}:NO_FUNCTION", "is not a function"),
        ("redaction_hook_that_exits:f", "SystemExit: not today"),
        ("redaction_hook_that_dies:f", "its process exited"),
    ],
)
def test_a_hook_that_cannot_be_imported_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    (tmp_path / "redaction_hook_that_exits.py").write_text("raise SystemExit('not today')")
    (tmp_path / "redaction_hook_that_dies.py").write_text("import os\nos._exit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    settings = FAKES.model_copy(update={"episodes_dir": tmp_path, "episodes_redact": name})
    with pytest.raises(ConfigError, match="QGUIDE_EPISODES_REDACT is ") as refused:
        create_app(settings)
    assert reason in str(refused.value)
