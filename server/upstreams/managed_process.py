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
from typing import IO, Any, Final, Self

import psutil

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
        command: command line, run by a guard that kills it when this process is gone. A piped process has no guard and
            must exit at the end of its input.
        output: file for its output, or a function that is called with each line on a separate thread. For a piped
            process this is only stderr.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        output: Path | Callable[[str], None],
        piped: bool = False,
        folder: Path | None = None,
    ) -> None:
        self.name = name
        if shutil.which(command[0]) is None:
            raise ConfigError(f"{name} cannot be started: there is no program {command[0]}; install it")
        self._log = output if isinstance(output, Path) else None
        self._last_lines: deque[str] = deque(maxlen=_SHOWN_LINES)
        self._listener: Thread | None = None
        self._heard: IO[str] | None = None
        guard = () if piped else (sys.executable, "-I", process_guard.__file__)
        with (self._log or Path(os.devnull)).open("wb") as file:
            sink: Any = file if self._log else subprocess.PIPE
            self._process = subprocess.Popen(
                [*guard, *command],
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.PIPE,  # the guard, or a piped process, exits when it is closed
                stdout=subprocess.PIPE if piped else sink,
                stderr=sink if piped else subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # so that its descendants are killed as one group
            )
        if callable(output):
            self._heard = self._process.stderr if piped else self._process.stdout
            self._listener = Thread(target=self._listen, args=(output,), daemon=True)
            self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the guard or the piped process, which is also its process group's."""
        return self._process.pid

    @property
    def stdin(self) -> IO[str]:
        """Standard input of a piped process."""
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[str]:
        """Standard output of a piped process."""
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs."""
        return self._process.poll()

    @property
    def running(self) -> bool:
        """True until it has exited."""
        return self.status is None

    def family(self) -> list[int]:
        """Process ids of itself and all running descendants."""
        try:
            children = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [self.pid, *(child.pid for child in children)]

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
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and pipe is not self._heard:
                with suppress(BrokenPipeError):  # input that it has not read
                    pipe.close()

    def _listen(self, tell: Callable[[str], None]) -> None:
        assert self._heard is not None
        with self._heard:
            for line in self._heard:
                self._last_lines.append(line.rstrip())
                tell(line.rstrip())
