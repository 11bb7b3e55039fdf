"""vLLM engine behind a pipe with JSON lines, run by a Python interpreter that has vLLM.

    python -I vllm_engine.py '{"model": FOLDER, "dtype": "float32", ...}'

The first line of output describes the engine. It then answers {"prompts": [[token id, ...], ...]}
with the hidden state at each last token, in base64 of little-endian float32, and the time spent in
the engine's call. It exits at the end of its input. It must not import QGuide, which its
interpreter does not have.
"""

import base64
import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Answer requests until the input ends."""
    # Everything else that vLLM and its libraries print goes to stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(row: dict[str, Any]) -> None:
        answers.write(json.dumps(row) + "\n")
        answers.flush()

    engine, about = _start(json.loads(sys.argv[1]))
    answer(about)
    for line in sys.stdin:
        answer(_embed(engine, json.loads(line)["prompts"]))


def _start(options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Start the engine in this process; returns it with its description."""
    import vllm
    from vllm.config import PoolerConfig

    engine = vllm.LLM(
        runner="pooling",
        convert="embed",
        pooler_config=PoolerConfig(pooling_type="LAST", use_activation=False),
        enable_prefix_caching=True,
        **options,
    )
    block_size = engine.llm_engine.vllm_config.cache_config.block_size
    return engine, {"version": vllm.__version__, "block_size": block_size}


def _embed(engine: Any, prompts: list[list[int]]) -> dict[str, Any]:
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    wall, cpu = time.perf_counter(), time.process_time()
    outputs = engine.encode(inputs, pooling_task="embed", use_tqdm=False)
    spent = {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}
    states = [output.outputs.data.float().cpu().numpy().astype("<f4") for output in outputs]
    return {
        "hidden": [base64.b64encode(state.tobytes()).decode() for state in states],
        "cached_tokens": sum(output.num_cached_tokens or 0 for output in outputs),
        **spent,
    }


if __name__ == "__main__":
    main()
