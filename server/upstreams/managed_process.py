"""Child processes: start, readiness, output, and termination with all descendants."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Final, Self

from qguide.qnet.errors import ConfigError
from qguide.server.upstreams import process_guard

_NAMES: Final = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LANGUAGE", "TERM"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("CC", "CXX", "CPATH", "LIBRARY_PATH", "MAX_JOBS"),  # kernels are compiled at run time
        *("NO_COLOR", "TOKENIZERS_PARALLELISM", "MALLOC_ARENA_MAX"),
    )
)
_PREFIXES: Final = (
    *("LC_", "LD_", "PYTHON"),
    *("CUDA_", "NVIDIA_", "NCCL_", "CUBLAS_", "CUDNN_", "NVTE_", "FLASHINFER_"),
    *("HIP_", "HSA_", "ROCR_", "ROCM_", "AMD_", "MIOPEN_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "GLOO_", "UCX_"),
    *("VLLM_", "TORCH", "PYTORCH_", "TRITON_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_"),
)
_SECRET: Final = re.compile(r"(^|_)(TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL|AUTH)S?(_|$)", re.I)


def child_environment(environment: Mapping[str, str], named: Sequence[str] = ()) -> dict[str, str]:
    """The variables to pass on.

    Args:
        named: names that the operator allows in addition, even if they look like secrets.
    """
    return {
        name: value
        for name, value in environment.items()
        if name in named or name in _NAMES or (name.startswith(_PREFIXES) and not _SECRET.search(name))
    }


_POLL_S: Final = 0.2
_END_S: Final = 10.0
_SHOWN_LINES: Final = 15


class ManagedProcess:
    """A child process in its own session, which does not outlive this process.

    Args:
        command: command line, run by a guard that kills it when this process is gone.
        output: file for its output, or a function that is called with each line on a separate thread.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str], output: Path | Callable[[str], None]
    ) -> None:
        self.name = name
        if shutil.which(command[0]) is None:
            raise ConfigError(f"{name} cannot be started: there is no program {command[0]}; install it")
        self._log = output if isinstance(output, Path) else None
        self._last_lines: deque[str] = deque(maxlen=_SHOWN_LINES)
        self._listener: Thread | None = None
        with (self._log or Path(os.devnull)).open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-I", process_guard.__file__, *command],
                env=dict(environment),
                stdin=subprocess.PIPE,  # the guard exits when it is closed
                stdout=file if self._log else subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # so that its descendants are killed as one group
            )
        if callable(output):
            self._listener = Thread(target=self._listen, args=(output,), daemon=True)
            self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the guard, which is also its process group's."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs."""
        return self._process.poll()

    @property
    def running(self) -> bool:
        """True until it has exited."""
        return self.status is None

    def wait_until(self, ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Poll until the process is ready."""
        deadline = monotonic() + timeout_s
        while not ready():
            if self.status is not None:
                raise self.failure(f"exited with {self.status} during its start")
            if monotonic() > deadline:
                raise self.failure(f"did not answer within {timeout_s:g} s")
            sleep(_POLL_S)

    def failure(self, what: str) -> ConfigError:
        """Error with its last lines of output; waits for the rest of them if it has exited."""
        if self._listener is not None and not self.running:
            self._listener.join(_END_S)
        lines: Sequence[str] = self._last_lines
        if self._log is not None:
            lines = self._log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
        text = "\n".join(lines)
        return ConfigError(f"{self.name} {what}; its last lines were:\n{text}")

    def signal(self, number: int) -> None:
        """Send a signal to its process group; does nothing if it has exited."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def close(self) -> None:
        """Terminate the process group, and kill it after a while; safe to call twice."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.signal(number)  # SIGKILL also ends descendants that are left
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                continue
        self._process.wait()
        if self._listener is not None:
            self._listener.join(_END_S)
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _listen(self, tell: Callable[[str], None]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as heard:
            for line in heard:
                self._last_lines.append(line.rstrip())
                tell(line.rstrip())
