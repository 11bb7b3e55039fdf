"""`qguide serve`: faults that are found before a model is loaded."""

import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from qguide.cli import app


@pytest.fixture
def never_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def build_models(settings: Any) -> None:
        raise AssertionError("the models were loaded")

    monkeypatch.setattr("qguide.server.q_models.build.build_models", build_models)


@pytest.mark.usefixtures("never_loading")
def test_a_port_in_use_is_found_first() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refused = CliRunner().invoke(app, ["serve", "--port", str(port)])
    assert refused.exit_code == 1
    assert refused.output == f"error: port {port} is in use; choose another with --port\n"


@pytest.mark.usefixtures("never_loading")
def test_a_missing_keys_file_is_found_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QGUIDE_KEYS_FILE", str(tmp_path / "keys.json"))
    refused = CliRunner().invoke(app, ["serve", "--port", "0"])
    assert refused.exit_code == 1
    assert refused.output.startswith(f"error: keys file {tmp_path}/keys.json cannot be read")
