"""Wrong settings are refused when the server starts, not at the first request."""

import json

import pytest
from typer.testing import CliRunner

from qguide.cli import app


@pytest.mark.parametrize("key", ["sk-…", "sk secret", "sk-secret\nX-Evil: 1"])
@pytest.mark.parametrize("variable", ["QGUIDE_UPSTREAMS", "QGUIDE_VLLM_TRUNKS", "QGUIDE_CLASSIFIERS"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, variable: str, key: str
) -> None:
    served = {"url": "http://127.0.0.1:9", "api_key": key}
    if variable != "QGUIDE_VLLM_TRUNKS":
        served["model"] = "gpt"
    monkeypatch.setenv(variable, json.dumps({"gpt": served}))
    done = CliRunner().invoke(app, ["serve"])
    said = " ".join(done.output.split())
    assert done.exit_code == 2
    assert "gpt.api_key: the key has a space, a control character or" in said
    assert key not in done.output
    assert "secret" not in said


def test_a_map_that_is_no_json_is_told_with_what_breaks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QGUIDE_UPSTREAMS", '{"gpt": {"api_key": "sk-secret\n"}}')
    done = CliRunner().invoke(app, ["serve"])
    said = " ".join(done.output.split())
    assert done.exit_code == 2
    assert '"upstreams"' in said
    assert "without line breaks in strings" in said
    assert "Traceback" not in said
    assert "secret" not in said
