"""Child processes of benchmarks."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from qguide.qnet.errors import ConfigError
from qguide.server.upstreams.managed_process import ManagedProcess

START_S = 1800.0
"""Generous, because a large model may start on a busy machine."""
ANSWER_S = 1800.0


def child(
    name: str, command: Sequence[str], *, log: Path, environment: Mapping[str, str], piped: bool = False
) -> ManagedProcess:
    """Start a process, to be used in a `with` block that ends it.

    Args:
        log: file for its output; reading the output here would disturb the measurement.
        environment: variables added to this process's environment.
        piped: open pipes to its stdin and stdout.

    Raises:
        ConfigError: it cannot be started.
    """
    whole = {**os.environ, **environment}
    try:
        return ManagedProcess(name, command, environment=whole, output=log, piped=piped)
    except OSError as error:
        raise ConfigError(f"{name} cannot be started: {error.strerror}") from error
