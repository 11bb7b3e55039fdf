"""`qguide serve`: faults that are found before a model is loaded."""

import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from qguide.cli import app
from qguide.server.settings.settings import Settings


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


@pytest.mark.usefixtures("never_loading")
@pytest.mark.parametrize(
    ("variable", "value", "place"),
    [
        ("QGUIDE_LOG_LEVEL", "LOUD", "QGUIDE_LOG_LEVEL is 'LOUD': "),
        ("QGUIDE_MAX_CANDIDATES", "many", "QGUIDE_MAX_CANDIDATES is 'many': "),
        ("QGUIDE_THRESHOLDS", '{"x": {"below": "low", "actions": ["add"]}}', "QGUIDE_THRESHOLDS.x.below is 'low': "),
        ("QGUIDE_UPSTREAMS", '{"x": {"api_key": 7}}', "QGUIDE_UPSTREAMS.x.api_key: "),
    ],
)
def test_a_wrong_setting_is_named_by_its_variable_with_values_that_are_no_secret(
    variable: str, value: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    refused = CliRunner().invoke(app, ["serve", "--port", "0"])
    assert refused.exit_code == 2
    assert f"error: {place}" in refused.output


def test_the_log_level_may_be_written_in_small_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QGUIDE_LOG_LEVEL", "warning")
    assert Settings().log_level == "WARNING"
