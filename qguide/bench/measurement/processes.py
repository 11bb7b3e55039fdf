"""The processes that a benchmark starts."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from qnet.errors import ConfigError
from server.upstreams.managed_process import ManagedProcess

START_S = 1800.0
"""A large model on a busy machine takes its time."""
ANSWER_S = 1800.0


def child(
    name: str,
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    piped: bool = False,
) -> ManagedProcess:
    """A process that lives as long as a `with` block.

    Args:
        log: what it writes goes here: to listen to it would take time of what is measured.
        environment: added to this process's.
        piped: talk with it through stdin and stdout.

    Raises:
        ConfigError: it cannot be started.
    """
    whole = {**os.environ, **environment}
    try:
        return ManagedProcess(name, command, environment=whole, output=log, piped=piped)
    except OSError as error:
        raise ConfigError(f"{name} cannot be started: {error.strerror}") from error
