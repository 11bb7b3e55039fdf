"""Servers of a measurement: a mock LLM, and `qguide serve` or its application before it."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Thread
from types import MappingProxyType
from typing import Any, cast

import httpx
from fastapi import FastAPI
from fastapi.testclient import TestClient

from benchmarks.measurement.processes import child, free_port, wait_until_ready
from benchmarks.strangers.served_model import build_server
from qguide.commands.serve import models_given
from qguide.qnet.types import BatchPolicy, Candidate, SampleRequest
from qguide.server.app import create_app
from qguide.server.learning.service import LEARNING
from qguide.server.observability.logs import configure_logging
from qguide.server.settings.learning import KEYLESS
from qguide.server.settings.settings import Settings


@dataclass(slots=True)
class ChangingMock:
    """A mock LLM in whose place another one may be put.

    Attributes:
        now: the one that answers.
    """

    now: BatchPolicy
    name: str = "changing"

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Draw the replies of each request."""
        return self.now.sample_batch(requests)


@contextmanager
def served_mock(mock: BatchPolicy, *, seed: int, delay_s: float = 0.0) -> Iterator[str]:
    """The mock LLM of an environment behind OpenAI's API during the block; yields its base URL.

    What it draws depends on what it is asked and how often before, not on which of two requests
    comes first.

    Args:
        seed: of its draws.
        delay_s: time of every answer, in which nothing is computed.
    """
    server = build_server(mock)
    handler: Any = server.RequestHandlerClass
    answer = handler.replies
    times: Counter[str] = Counter()

    def replies(self: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
        time.sleep(delay_s)
        asked = json.dumps(body)
        times[asked] += 1
        chance = Random(f"mock {seed} {times[asked]} {asked}")
        drawn: list[dict[str, Any]] = answer(self, body | {"seed": chance.getrandbits(63)})
        return drawn

    handler.replies = replies
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def qguide_serve(
    upstream: str,
    folder: Path,
    *,
    candidates: int,
    options: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """`qguide serve` during the block; yields its root URL.

    Args:
        upstream: base URL of the model.
        folder: of its log and of what it records; it is made.
        candidates: M.
        options: further ones of the command.
        environment: further settings.

    Raises:
        ConfigError: it does not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "qguide", "serve", "--host", "127.0.0.1", "--port", str(port)]
    settings = {
        "QGUIDE_EPISODES_DIR": str(folder / "episodes"),
        "QGUIDE_NUM_CANDIDATES": str(candidates),
        **environment,
    }
    with child(
        "qguide serve",
        [*command, "--upstream", f"{upstream}#mock", *options],
        log=folder / "serve.log",
        environment=settings,
    ) as process:
        with httpx.Client(base_url=url) as http:
            wait_until_ready(process, http, "/readyz")
        yield url
        if not process.running:
            raise process.failure("exited")


@contextmanager
def app_in_process(upstream: str, folder: Path, *, candidates: int, learn: bool, seed: int) -> Iterator[TestClient]:
    """The application of `qguide serve` in this process during the block; yields its client.

    Args:
        upstream: base URL of the model.
        folder: of what it records.
        candidates: M.
        learn: as by `--learn`.
        seed: of the salt of the features, without which no run would be like another.
    """
    configure_logging("ERROR")
    (folder / "episodes" / LEARNING / KEYLESS).mkdir(parents=True)
    salt = Random(f"salt {seed}").randbytes(16).hex()
    (folder / "episodes" / LEARNING / KEYLESS / "salt").write_text(salt)
    settings = Settings(
        **models_given(None, None, f"{upstream}#mock", learn=learn),
        episodes_dir=folder / "episodes",
        num_candidates=candidates,
    )
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        yield client


def wait_for_fits(client: TestClient) -> None:
    """Wait until no fit runs at an application in this process."""
    assert client.portal is not None
    client.portal.call(cast(FastAPI, client.app).state.learning.settle)
