"""A real vLLM's engine as a contestant, in a process of its own that is spoken to through pipes."""

import base64
import json
import select
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qguide.bench.measurement.measure import Timing
from qguide.bench.measurement.processes import ANSWER_S, START_S, child
from qguide.bench.measurement.steps import Asked, Step
from qguide.bench.score.baselines import ManySessions
from qguide.bench.score.exported_model import Workplace
from server.upstreams.managed_process import ManagedProcess

ENGINE = Path(__file__).with_name("vllm_engine.py")


class VllmEngine:
    """vLLM's own engine in a process with nothing else; its call alone is measured, there."""

    def __init__(self, workplace: Workplace, process: ManagedProcess) -> None:
        self._workplace = workplace
        self._process = process
        self._spent = Timing(0.0, 0.0)
        self.cached_tokens = 0
        self.about = self._read(START_S)

    def prepare(self, step: Step) -> None:
        """Score the step before."""
        self._ask([step.before])

    def score(self, step: Step) -> list[float]:
        """Q of each candidate."""
        return self.score_all([step])[0]

    def score_all(self, steps: Sequence[Step]) -> list[list[float]]:
        """Q of each candidate of each step, all in one call of the engine."""
        q_values = iter(self._ask([step.now for step in steps]))
        return [[next(q_values) for _ in step.now.candidates] for step in steps]

    def clock(self) -> Timing:
        """What the engine's calls have taken so far; pipe and head are not among it."""
        return self._spent

    def _ask(self, asked: Sequence[Asked]) -> list[float]:
        prompts = [sequence for one in asked for sequence in one.sequences]
        try:
            self._process.stdin.write(json.dumps({"prompts": prompts}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._process.failure("takes no more prompts") from error
        answer = self._read(ANSWER_S)
        self._spent = Timing(
            self._spent.cpu_s + answer["cpu_s"], self._spent.wall_s + answer["wall_s"]
        )
        self.cached_tokens = answer["cached_tokens"]
        return self._workplace.q_values([base64.b64decode(state) for state in answer["hidden"]])

    def _read(self, timeout_s: float) -> dict[str, Any]:
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise self._process.failure("ended" if ready else f"was silent for {timeout_s:g} s")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def vllm_engine(workplace: Workplace, *, block_size: int | None) -> Iterator[ManySessions]:
    """vLLM on the trunk; None leaves the block size to it.

    Raises:
        ConfigError: it does not start.
    """
    options: dict[str, Any] = {
        "model": str(workplace.trunk),
        "dtype": workplace.dtype,
        "max_model_len": workplace.longest,
        "kv_cache_memory_bytes": workplace.cache_bytes,
    }
    if workplace.device == "cpu":
        options["enforce_eager"] = True
    if block_size is not None:
        options["block_size"] = block_size
    name = "vLLM" if block_size is None else f"vLLM with blocks of {block_size}"
    with child(
        name,
        [workplace.vllm_python, "-I", str(ENGINE), json.dumps(options)],
        log=workplace.folder / f"vllm-{block_size}.log",
        environment={**workplace.vllm_environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        piped=True,
    ) as process:
        yield VllmEngine(workplace, process)
