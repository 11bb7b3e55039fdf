"""Trial of a downloaded tokenizer and chat template in a child process with limits.

Both are data that runs: a normaliser of a few lines makes gigabytes of a word, a template loops for
hours. In a process of its own that ends that process. The trial sees what every conversation sets
off, and nothing that waits for certain words (SECURITY.md).

    python -m qguide.qnet.models.tokenizer_check FOLDER CPU_S MEMORY_BYTES
"""

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Final

from qguide.qnet.errors import CheckpointError, QGuideError

_SAMPLE: Final = "Find the mug. " + "".join(map(chr, range(0x20, 0x3000)))
"""Words, and every character up to the symbols before CJK: bombs may wait for a single one."""
_MOST_TOKENS_PER_BYTE: Final = 16  # Unicode's own normal forms make at most 12 of a byte
_MOST_TOKENS_OF_A_TURN: Final = 100_000
_REFUSED: Final = 3
_WALL_PER_CPU: Final = 5


def check_tokenizer(folder: Path, *, cpu_s: int = 120, memory_bytes: int = 4 * 1024**3) -> None:
    """Try the tokenizer and the chat template of a model in a child process.

    Five times its CPU time may pass. Its memory is limited in addition to what the libraries take, and by Linux alone.
    """
    numbers = map(str, (cpu_s, memory_bytes))
    command = [sys.executable, "-m", "qguide.qnet.models.tokenizer_check", str(folder), *numbers]
    try:
        tried = subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_WALL_PER_CPU * cpu_s,
        )
    except subprocess.TimeoutExpired as error:
        raise _hostile(folder, f"did not end within {_WALL_PER_CPU * cpu_s} s") from error
    if tried.returncode == _REFUSED:
        raise _hostile(folder, tried.stdout.strip()[-500:])
    if tried.returncode:
        raise _hostile(
            folder,
            f"ended the trial with status {tried.returncode}, at a limit of {cpu_s} s of "
            f"CPU time and {memory_bytes:,} bytes",
        )


def _hostile(folder: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{folder}: a trial of its tokenizer and chat template {why}; do not load this model, or "
        "read its tokenizer.json and chat template and copy the folder elsewhere, which is then "
        "loaded without a trial"
    )


def _try(folder: str, cpu_s: int, memory_bytes: int) -> str:
    """Load, render and tokenise; the fault that was found, or nothing."""
    # A tokenizer needs no torch, whose import is most of what a trial would take.
    sys.modules["torch"] = None  # type: ignore[assignment]
    from transformers import AutoTokenizer

    from qguide.qnet.rendering.renderer import Renderer
    from qguide.qnet.types import Message

    _limit(cpu_s, memory_bytes)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    renderer = Renderer(tokenizer)
    size = len(_SAMPLE.encode())
    tokens = len(tokenizer(_SAMPLE, add_special_tokens=False)["input_ids"])
    if tokens > _MOST_TOKENS_PER_BYTE * size:
        return f"made {tokens:,} tokens of {size:,} bytes, more than {_MOST_TOKENS_PER_BYTE} each"
    turn = len(renderer.encode_history((Message("user", "Find the mug."),)))
    if turn > _MOST_TOKENS_OF_A_TURN:
        return f"made {turn:,} tokens of a short turn, more than {_MOST_TOKENS_OF_A_TURN:,}"
    return ""


def _limit(cpu_s: int, memory_bytes: int) -> None:
    """Limit this process from here on; the libraries are imported before."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s += int(used.ru_utime + used.ru_stime)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    status = Path("/proc/self/status")
    if status.exists():
        [data] = [line for line in status.read_text().splitlines() if line.startswith("VmData:")]
        most = int(data.split()[1]) * 1024 + memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _main(folder: str, cpu_s: str, memory_bytes: str) -> int:
    try:
        fault = _try(folder, int(cpu_s), int(memory_bytes))
    except MemoryError:
        fault = f"took more than {int(memory_bytes):,} bytes"
    except QGuideError as error:
        fault = f"failed ({error})"
    except Exception as error:  # a broken tokenizer can fail in any way
        fault = f"failed ({type(error).__name__}: {error})"
    sys.stdout.write(fault)
    return _REFUSED if fault else 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
