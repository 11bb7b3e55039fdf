"""`qguide demo` shows a page and a recorded episode, and cleans up after itself."""

import json
import re
import signal
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.support.absent import ROOT, command_without

EXTRAS = ["torch", "transformers", "tokenizers", "accelerate", "peft", "matplotlib", "scipy"]
END_S = 60

pytestmark = pytest.mark.server


def test_the_demo_serves_a_page_and_records_an_episode() -> None:
    command = command_without(EXTRAS, "from qguide.cli import app; app()", "demo", "--port", "0")
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            printed: list[str] = []
            while not printed or "Ctrl-C" not in printed[-1]:
                line = process.stdout.readline()
                assert line, f"the demo ended: {printed}"
                printed.append(line)
            text = "".join(printed)
            (page,) = re.findall(r"the page +(\S+)", text)
            assert httpx.get(page).status_code == 200
            assert text.count("*0.") == 3
            assert "Replies and Q-values are a fixed script" in text
            assert "*0.95 put mug 1 in shelf 1" in text
            (offers,) = (Path(found) for found in re.findall(r"\S+offers-\S+", text))
            rows = [json.loads(line) for line in offers.read_text().splitlines()]
            assert len(rows) == 3
            assert all(Path(found).is_file() for found in re.findall(r"\S+trees-\S+", text))
            base = re.findall(r"base URL (\S+),", text)[0]
            body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}]}
            answer = httpx.post(f"{base}/chat/completions", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(END_S)
    assert process.returncode == 0
    assert not offers.parent.exists()


def test_a_port_in_use_ends_the_demo_before_it_loads_anything() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        # Without these, neither a game nor a model of the race can be loaded.
        command = command_without(EXTRAS, "from qguide.cli import app; app()", "demo", "--race", "--port", str(port))
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=END_S, check=False)
    assert result.returncode == 2
    assert f"port {port} is in use; choose another with --port" in " ".join(result.stderr.split())
    assert "torch" not in result.stderr
