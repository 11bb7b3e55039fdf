"""`qguide doctor`: each fault is found, with its remedy, and no secret is printed."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from qguide.cli import app
from qguide.server.chat.fake_openai import FakeUpstream
from tests.support.serving import free_port, serving_app

SCRIPTED = ("--policy", "scripted", "--scorer", "scripted")
SECRET = "sk-very-secret"


@pytest.fixture(autouse=True)
def plain_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the logging of this process as it is."""
    monkeypatch.setattr("qguide.server.observability.logs.configure_logging", lambda level: None)


def examined(*options: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *options])


def line_of(done: Result, checked: str) -> str:
    (line,) = (one for one in done.stdout.splitlines() if one[7:].startswith(checked))
    return line


def test_a_server_that_lacks_nothing_draws_and_scores() -> None:
    done = examined(*SCRIPTED)
    assert done.exit_code == 0, done.output
    assert line_of(done, "policy scripted").endswith("draws a reply")
    assert "scores: Q = " in line_of(done, "Q model scripted")
    assert "no fault found" in done.stdout


def test_an_upstream_and_its_judge_are_asked() -> None:
    with serving_app(FakeUpstream().app()) as url:
        done = examined("--upstream", f"{url}/v1#fake", "--scorer", "judge:fake")
    assert done.exit_code == 0, done.output
    assert line_of(done, "upstream fake").startswith("ok")
    assert "scores: Q = " in line_of(done, "Q model judge")


def test_an_upstream_without_a_scorer_is_said_to_be_unguided() -> None:
    with serving_app(FakeUpstream().app()) as url:
        done = examined("--upstream", f"{url}/v1#fake")
    assert done.exit_code == 0, done.output
    assert "--scorer judge:fake" in line_of(done, "guidance")


def test_what_a_dead_upstream_breaks_comes_after_it_and_its_key_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"http://127.0.0.1:{free_port()}/v1"
    upstream = f'{{"dead": {{"url": "{address}", "model": "m", "api_key": "{SECRET}"}}}}'
    monkeypatch.setenv("QGUIDE_UPSTREAMS", upstream)
    done = examined("--policy", "dead", "--scorer", "judge:dead")
    assert done.exit_code == 1
    faults = [line for line in done.stdout.splitlines() if line[:2] in ("1.", "2.", "3.")]
    assert [fault[3:].partition(":")[0] for fault in faults] == ["upstream dead", "policy dead", "Q model judge"]
    assert "start it, or correct its address and key" in faults[0]
    assert SECRET not in done.output


def test_keys_disk_and_redis_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("QGUIDE_KEYS_FILE", str(tmp_path / "keys.json"))
    monkeypatch.setenv("QGUIDE_EPISODES_DIR", str(file / "episodes"))
    monkeypatch.setenv("QGUIDE_REDIS_URL", f"redis://:{SECRET}@127.0.0.1:{free_port()}")
    done = examined(*SCRIPTED)
    assert done.exit_code == 1
    assert [line_of(done, name)[:5] for name in ("API keys", "episodes", "Redis")] == ["fault"] * 3
    assert "QGUIDE_EPISODES_DIR" in done.stdout
    assert SECRET not in done.output
    assert not (tmp_path / "keys.json").exists()


def test_a_checkpoint_that_is_none_is_a_fault_of_the_models(tmp_path: Path) -> None:
    done = examined("--policy", "scripted", "--scorer", str(tmp_path))
    assert done.exit_code == 1
    assert line_of(done, "models").startswith("fault")
