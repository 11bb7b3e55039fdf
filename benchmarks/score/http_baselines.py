"""Baselines over HTTP: `qguide serve` and a vLLM server, with this process as the client."""

import base64
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import httpx

from benchmarks.measurement.measure import Timing, clock_of
from benchmarks.measurement.processes import ANSWER_S, child, family, free_port, wait_until_ready
from benchmarks.measurement.shapes import spell_sequence
from benchmarks.measurement.steps import Step, TokenizedStep
from benchmarks.score.baselines import ManySessions
from benchmarks.score.exported_model import BLOCK, SERVED_NAME, ExportedModel
from qguide.qnet.errors import ConfigError
from qguide.qnet.types import History, Message
from qguide.server.upstreams.managed_process import ManagedProcess

_AS_MANY_AS_STEPS = httpx.Limits()


class _OverHttp(ABC):
    """A server and its clients in this process; only the server's CPU time is measured."""

    _ready = "/health"

    def __init__(self, exported: ExportedModel, process: ManagedProcess, port: int) -> None:
        self._exported = exported
        self._process = process
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=ANSWER_S, limits=_AS_MANY_AS_STEPS)
        wait_until_ready(process, self._http, self._ready)

    @abstractmethod
    def prepare(self, step: Step) -> None:
        """Score the previous step."""

    @abstractmethod
    def score(self, step: Step) -> list[float]:
        """Q of each candidate."""

    def score_all(self, steps: Sequence[Step]) -> list[list[float]]:
        """Q of each candidate of each step, with one concurrent request per step."""
        with ThreadPoolExecutor(len(steps)) as clients:
            return list(clients.map(self.score, steps))

    def clock(self) -> Timing:
        """CPU time of the server's processes, and wall-clock time of the client."""
        try:
            return clock_of(self._pids)
        except OSError as error:  # one has exited, or this is not Linux
            raise self._process.failure("cannot be timed from outside") from error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    @cached_property
    def _pids(self) -> list[int]:
        return family(self._process)

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        try:
            response = self._http.post(path, json=body)
        except httpx.TransportError as error:
            raise self._process.failure(f"did not answer ({type(error).__name__})") from error
        if response.status_code != 200:
            raise self._process.failure(f"answered {path} with {response.status_code}")
        return response.json()


class ServedByQGuide(_OverHttp):
    """`/v1/score` of a `qguide serve`."""

    _ready = "/readyz"

    def prepare(self, step: Step) -> None:
        """Score the previous step."""
        self._score(step.request_before.history, step.request_before.candidates)

    def score(self, step: Step) -> list[float]:
        """Q of each candidate."""
        return self._score(step.request.history, step.request.candidates)

    def _score(self, history: History, candidates: Sequence[Message]) -> list[float]:
        body = {
            "messages": [{"role": m.role, "content": m.content} for m in history],
            "candidates": [m.content for m in candidates],
        }
        return [score["q_value"] for score in self._post("/v1/score", body)["scores"]]


class ServedByVllm(_OverHttp):
    """`/pooling` of a vLLM server, which tokenises every full sequence."""

    def prepare(self, step: Step) -> None:
        """Score the previous step."""
        self._score(step.before)

    def score(self, step: Step) -> list[float]:
        """Q of each candidate."""
        return self._score(step.now)

    def _score(self, step: TokenizedStep) -> list[float]:
        sequences = step.sequences
        body = {
            "model": SERVED_NAME,
            "input": [spell_sequence(sequence) for sequence in sequences],
            "add_special_tokens": False,
            "use_activation": False,
            "encoding_format": "base64",
            "embed_dtype": "float32",
            "endianness": "little",
        }
        answer = self._post("/pooling", body)
        read, sent = answer["usage"]["prompt_tokens"], sum(map(len, sequences))
        if read != sent:
            raise ConfigError(
                f"vLLM's server read {read:,} tokens where {sent:,} were sent; check that it "
                "serves this model's tokenizer"
            )
        rows = sorted(answer["data"], key=lambda row: int(row["index"]))
        return self._exported.q_values([base64.b64decode(row["data"]) for row in rows])


@contextmanager
def served_by_qguide(exported: ExportedModel) -> Iterator[ManySessions]:
    """Run `qguide serve` with the checkpoint during the block.

    Raises:
        ConfigError: it does not start.
    """
    port = free_port()
    with child(
        "qguide serve",
        [sys.executable, "-m", "qguide", "serve", "--port", str(port)],
        log=exported.folder / "http.log",
        environment={
            "QGUIDE_POLICY": "scripted",
            "QGUIDE_Q_MODELS": json.dumps({SERVED_NAME: str(exported.checkpoint)}),
            "QGUIDE_DEVICE": exported.device,
            "QGUIDE_DTYPE": exported.dtype,
            "QGUIDE_THREADS": str(exported.threads),
            "QGUIDE_CACHE_BYTES": str(exported.cache_bytes),
            "QGUIDE_TIMEOUT_S": str(ANSWER_S),
            "QGUIDE_CONCURRENT_REQUESTS": "0",
            "QGUIDE_LOG_LEVEL": "ERROR",
        },
    ) as process:
        yield from _closing(ServedByQGuide(exported, process, port))


@contextmanager
def served_by_vllm(exported: ExportedModel) -> Iterator[ManySessions]:
    """Run a vLLM server with the trunk, blocks of 32 and the options of docs/operate/vllm.md.

    Raises:
        ConfigError: it does not start.
    """
    port = free_port()
    command = [exported.vllm_python, "-I", "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(exported.trunk), "--served-model-name", SERVED_NAME]
    command += ["--host", "127.0.0.1", "--port", str(port), "--runner", "pooling"]
    command += ["--convert", "embed", "--enable-prefix-caching", "--dtype", exported.dtype]
    command += ["--max-model-len", str(exported.longest), "--block-size", str(BLOCK)]
    command += ["--kv-cache-memory-bytes", str(exported.cache_bytes)]
    command += ["--pooler-config", '{"pooling_type": "LAST", "use_activation": false}']
    if exported.device == "cpu":
        command.append("--enforce-eager")
    with child(
        "vLLM's server", command, log=exported.folder / "vllm-http.log", environment=exported.vllm_environment
    ) as process:
        yield from _closing(ServedByVllm(exported, process, port))


def _closing(served: ServedByQGuide | ServedByVllm) -> Iterator[ManySessions]:
    try:
        yield served
    finally:
        served.close()
