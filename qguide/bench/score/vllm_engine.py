"""A vLLM engine on a pipe: lines of JSON in, lines of JSON out. Run by a Python that has vLLM.

    python -I vllm_engine.py '{"model": FOLDER, "dtype": "float32", ...}'

says what it is in its first line, then answers {"prompts": [[token id, ...], ...]} with the hidden
state at each last token, base64 of little-endian float32, and what the engine's call alone cost
this process. It ends with its input. It imports nothing of QGuide, which its Python does not have.
"""

import base64
import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Answer until the input ends."""
    # Whatever else is printed, by vLLM or what it uses, goes to stderr.
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
    """The engine, in this process, and a description of it."""
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
