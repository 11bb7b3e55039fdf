"""Misspelt settings: refused where they would leave the server unprotected, else warned about."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qguide.cli import app
from qguide.qnet.errors import ConfigError
from qguide.server.settings.settings import Settings
from qguide.server.settings.unknown_variables import OTHERS, PREFIX, PROTECTING, check_names, check_values

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("QGUIDE_EPISODES_REDACTT", "QGUIDE_EPISODES_REDACT"),
        ("qguide_episode_redact", "QGUIDE_EPISODES_REDACT"),
        ("QGUIDE_KEYFILE", "QGUIDE_KEYS_FILE"),
        ("QGUIDE_CORS_ORIGIN", "QGUIDE_CORS_ORIGINS"),
        ("QGUIDE_ALLOWED_HOSTS", "QGUIDE_TRUSTED_HOSTS"),
        ("QGUIDE_REQUEST_PER_MINUTE", "QGUIDE_REQUESTS_PER_MINUTE"),
    ],
)
def test_a_misspelt_setting_that_protects_is_refused(variable: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{variable} .*{meant}\b"):
        check_names({variable}, Settings.model_fields)


def test_other_unknown_names_are_warned_about() -> None:
    nearest, none = check_names({"QGUIDE_POLCIY", "QGUIDE_XYZZY", "PATH"}, Settings.model_fields)
    assert nearest == ("QGUIDE_POLCIY is not a setting and is ignored; did you mean QGUIDE_POLICY?")
    assert none.startswith("QGUIDE_XYZZY is not a setting and is ignored; see ")


def test_settings_and_variables_of_others_are_known() -> None:
    settings = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    assert not check_names({*settings, "qguide_policy", "QGUIDE_URL", "QGUIDE_API_KEY"}, Settings.model_fields)


def test_an_empty_value_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = ("QGUIDE_EPISODES_DIR", "QGUIDE_MODELS_DIR", "QGUIDE_Q_MODELS", "QGUIDE_PORT")
    for variable in empty:
        monkeypatch.setenv(variable, "")
    settings = Settings()
    assert (settings.episodes_dir, settings.models_dir, settings.q_models, settings.port) == (None, None, {}, 8000)
    assert check_values(dict.fromkeys((*empty, "QGUIDE_URL", "PATH"), ""), Settings.model_fields) == [
        f"{variable} is empty and is ignored" for variable in sorted(empty)
    ]


def test_an_empty_setting_that_protects_is_refused_by_whoever_reads_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QGUIDE_KEYS_FILE", "")
    monkeypatch.setenv("QGUIDE_EPISODES_REDACT", "")
    with pytest.raises(ConfigError, match="QGUIDE_EPISODES_REDACT, QGUIDE_KEYS_FILE: empty"):
        Settings()
    with pytest.raises(ConfigError, match=r"^QGUIDE_EPISODES_REDACT: empty"):
        Settings(keys_file=Path("keys.json"))
    refused = CliRunner().invoke(app, ["serve"])
    assert refused.exit_code == 2
    assert "QGUIDE_KEYS_FILE: empty" in refused.output.replace("\n", " ")


def test_links_of_kubernetes_services_are_no_settings() -> None:
    links = ("SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT_8000_TCP_ADDR", "REDIS_PORT_6379_TCP")
    names = {f"{PREFIX}{name}" for name in (*links, "TRUSTED_SERVICE_HOST")}
    assert not check_names(names, Settings.model_fields)


def test_the_lists_name_settings_and_nothing_that_is_one() -> None:
    settings = set(Settings.model_fields)
    assert settings >= PROTECTING
    assert not {name.lower() for name in OTHERS} & settings


def test_every_variable_of_the_project_is_known() -> None:
    folders = ("clients/python", "clients/typescript/test", "qguide", "server", "training", "tests")
    read = re.compile(r"""QGUIDE_[A-Z_]*[A-Z](?=["'\W])""")
    own = Path(__file__)
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if path != own]
    files += [ROOT / "Makefile", *(ROOT / "clients/typescript/test").glob("*.ts")]
    names = {name for file in files for name in read.findall(file.read_text())}
    assert not check_names(names, Settings.model_fields)


def test_a_server_does_not_start_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QGUIDE_POLCIY", "scripted")
    monkeypatch.setenv("QGUIDE_DEVICE_", "cpu")
    monkeypatch.setenv("QGUIDE_PORT", "none")  # so that it does not start in any case
    warned = CliRunner().invoke(app, ["serve"])
    assert "warning: QGUIDE_POLCIY is not a setting" in warned.output
    monkeypatch.setenv("QGUIDE_EPISODES_REDACTT", "hooks:redact")
    refused = CliRunner().invoke(app, ["serve"])
    assert refused.exit_code == 2
    assert "QGUIDE_EPISODES_REDACTT is not a setting; write" in refused.output.replace("\n", " ")
    assert "port" not in refused.output
