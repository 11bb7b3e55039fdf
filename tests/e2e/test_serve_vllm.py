"""`qguide serve --vllm MODEL` as an operator runs it, with a script in place of vLLM."""

import json
import sys
from pathlib import Path

import httpx

from tests.support.scripted_vllm_module import install
from tests.support.serving import processes_with, serving

START_S = 300


def test_vllm_is_started_answers_and_ends_with_the_server(tmp_path: Path) -> None:
    model = str(tmp_path / "a-model")
    env = {
        "QGUIDE_VLLM_PYTHON": sys.executable,
        "QGUIDE_Q_MODELS": '{"demo": "scripted"}',
        "PYTHONPATH": str(install(tmp_path)),
    }
    log = tmp_path / "stderr.log"
    with serving("--vllm", model, env=env, log=log, start_s=START_S, forked=False) as url:
        assert len(processes_with(model)) == 3  # the server, vLLM and who guards it
        body = {"messages": [{"role": "user", "content": "look"}], "n": 2}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
        said = [choice["message"]["content"] for choice in answer["choices"]]
        assert (answer["model"], said) == ("vllm", ["Action: go to", "Action: look"])
    assert processes_with(model) == []
    lines = log.read_text().splitlines()
    passed_on = [json.loads(line)["line"] for line in lines if '"event": "vllm"' in line]
    assert passed_on[0] == f"loading {model}"
    assert any(line.startswith("vllm with demo on http://127.0.0.1:") for line in lines)
    assert "Traceback" not in log.read_text()
