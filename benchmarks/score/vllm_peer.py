"""Baseline that scores with vLLM's engine, in a separate process connected by pipes."""

import base64
import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from benchmarks.measurement.measure import Timing
from benchmarks.measurement.processes import ANSWER_S, START_S
from benchmarks.measurement.steps import Step, TokenizedStep
from benchmarks.score.baselines import ManySessions
from benchmarks.score.exported_model import ExportedModel
from qguide.qnet.errors import ConfigError

ENGINE = Path(__file__).with_name("vllm_engine.py")
_SHOWN_LINES = 20


class VllmEngine:
    """vLLM's engine in a separate process, which measures only the engine's calls."""

    def __init__(self, exported: ExportedModel, prompts: IO[str], answers: IO[str], *, log: Path) -> None:
        self._exported = exported
        self._prompts, self._answers = prompts, answers
        self._log = log
        self._spent = Timing(0.0, 0.0)
        self.cached_tokens = 0
        self.about = self._read(START_S)

    def prepare(self, step: Step) -> None:
        """Score the previous step."""
        self._ask([step.before])

    def score(self, step: Step) -> list[float]:
        """Q of each candidate."""
        return self.score_all([step])[0]

    def score_all(self, steps: Sequence[Step]) -> list[list[float]]:
        """Q of each candidate of each step, in one call of the engine."""
        q_values = iter(self._ask([step.now for step in steps]))
        return [[next(q_values) for _ in step.now.candidates] for step in steps]

    def clock(self) -> Timing:
        """Time spent in the engine's calls, without the pipe and the value head."""
        return self._spent

    def _ask(self, steps: Sequence[TokenizedStep]) -> list[float]:
        prompts = [sequence for step in steps for sequence in step.sequences]
        try:
            self._prompts.write(json.dumps({"prompts": prompts}) + "\n")
            self._prompts.flush()
        except OSError as error:
            raise ConfigError(f"vLLM accepts no more prompts; see {self._log}") from error
        answer = self._read(ANSWER_S)
        self._spent = Timing(self._spent.cpu_s + answer["cpu_s"], self._spent.wall_s + answer["wall_s"])
        self.cached_tokens = answer["cached_tokens"]
        return self._exported.q_values([base64.b64decode(state) for state in answer["hidden"]])

    def _read(self, timeout_s: float) -> dict[str, Any]:
        ready, _, _ = select.select([self._answers], [], [], timeout_s)
        line = self._answers.readline() if ready else ""
        if not line:
            what = "exited" if ready else f"did not answer for {timeout_s:g} s"
            # The log lies in a folder that is removed at the end.
            said = "\n".join(self._log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:])
            raise ConfigError(f"vLLM {what}; it said:\n{said}")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def vllm_engine(exported: ExportedModel, *, block_size: int | None) -> Iterator[ManySessions]:
    """Run vLLM's engine with the trunk during the block; None is vLLM's own block size.

    Raises:
        ConfigError: it does not start.
    """
    options: dict[str, Any] = {
        "model": str(exported.trunk),
        "dtype": exported.dtype,
        "max_model_len": exported.longest,
        "kv_cache_memory_bytes": exported.cache_bytes,
    }
    if exported.device == "cpu":
        options["enforce_eager"] = True
    if block_size is not None:
        options["block_size"] = block_size
    log = exported.folder / f"vllm-{block_size}.log"
    with log.open("wb") as complaints:
        process = subprocess.Popen(
            [exported.vllm_python, "-I", str(ENGINE), json.dumps(options)],
            env={**os.environ, **exported.vllm_environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            start_new_session=True,
        )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield VllmEngine(exported, process.stdin, process.stdout, log=log)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
