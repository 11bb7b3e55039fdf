"""The commands of docs/train/whole-way.md, from episodes to the report, with few episodes.

They are run as the page has them, except for addresses, numbers of episodes and sizes of models. So
few episodes show no lift: the page has the figures of a full run.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.alone import run_forked
from tests.support.documents import blocks_of
from tests.support.serving import ROOT, START_S, ForkedProcess, free_port, run_qguide

PAGE = "docs/train/whole-way.md"
SHORTER = {
    "--errands 0:40 --times 5": "--errands 0:6 --times 5",
    "--errands 40:64 --times 12": "--errands 40:45 --times 4",
    "errands/pipeline.toml": "errands/pipeline.toml --set trunk.architecture.hidden_size=32 "
    "--set trunk.architecture.layers=1 --set trunk.optimization.epochs=1 "
    "--set qnet.optimization.epochs=1",
}
END_S = 60


# The shell reads a block; its `qguide` tells what it was given, and starts in a process that has imported it.
TOLD = """
qguide() { printf '%s\\0' "$@" > arguments; env -0 > variables; }
"""


class Page:
    """The shell blocks of the page, in order, run in a folder with two ports of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{free_port()}"
        self.model = f"http://127.0.0.1:{free_port()}"
        # What judges a model after it was trained stands beside the way.
        shell = [block.text for block in blocks_of(PAGE) if block.language == "sh"]
        self._texts = [text for text in shell if "judged" not in text]

    def take(self, expected: str) -> str:
        """The next block, which has this in it, with the shorter runs and the other ports."""
        text = self._texts.pop(0)
        assert expected in text, f"the page goes another way than this test: {text}"
        for long, short in SHORTER.items():
            text = text.replace(long, short)
        here, there = self.url.rpartition(":")[2], self.model.rpartition(":")[2]
        return text.replace("127.0.0.1:8000", f"127.0.0.1:{here}").replace("8001", there)

    def run(self, expected: str) -> str:
        """Output of the next block."""
        return self._shell(self.take(expected))

    def run_qguide(self, expected: str) -> None:
        """Run the next block's command of `qguide`."""
        arguments, variables = self._told(expected)
        code, output = run_forked(run_qguide, arguments, cwd=self.folder, variables=variables)
        assert code == 0, output

    @contextmanager
    def serving(self, expected: str) -> Iterator[None]:
        """The server of the next block, once it is ready."""
        arguments, variables = self._told(expected)
        log = self.folder / "serving.log"
        process = ForkedProcess(arguments, variables, log, cwd=self.folder)
        try:
            _wait(process, f"{self.url}/readyz", log)
            yield
            process.send_signal(signal.SIGTERM)
            process.wait(END_S)
        finally:
            process.kill()

    @contextmanager
    def upstream(self, expected: str) -> Iterator[None]:
        """The model of the next block, once it answers."""
        log = self.folder / "model.log"
        command = ["/bin/bash", "-euc", f"exec {self.take(expected)}"]
        with (
            log.open("wb") as output,
            subprocess.Popen(command, cwd=self.folder, env=self._variables(), stdout=output, stderr=output) as process,
        ):
            try:
                _wait(process, f"{self.model}/v1/models", log)
                yield
            finally:
                process.terminate()

    def done(self) -> bool:
        """True when every block was run."""
        return not self._texts

    def _shell(self, text: str) -> str:
        done = subprocess.run(
            ["/bin/bash", "-euc", text],
            cwd=self.folder,
            env=self._variables(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _told(self, expected: str) -> tuple[list[str], dict[str, str]]:
        """Arguments and variables that the next block gives to `qguide`."""
        self._shell(TOLD + self.take(expected))
        arguments, variables = (
            (self.folder / name).read_text().split("\0")[:-1] for name in ("arguments", "variables")
        )
        return arguments, dict(variable.split("=", 1) for variable in variables)

    def _variables(self) -> Mapping[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        port = self.url.rpartition(":")[2]
        return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "QGUIDE_PORT": port}


def _wait(process: "subprocess.Popen[bytes] | ForkedProcess", ready: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            if httpx.get(ready).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    pytest.fail(f"not ready after {START_S} s: {log.read_text()}")


def test_an_agents_episodes_become_a_q_model_and_a_report_of_it(tmp_path: Path) -> None:
    for name in ("clients", "training"):
        (tmp_path / name).symlink_to(ROOT / name)
    page, runs = Page(tmp_path), tmp_path / "runs" / "errands"
    with page.upstream("errands/model.py"):
        with page.serving("runs/errands/served"):
            assert "of 30 errands succeeded" in page.run("--times 5")
        page.run_qguide("qguide run")
        summary = json.loads((runs / "pipeline" / "summary.json").read_text())
        assert list(summary["stages"]) == ["import", "trunk", "label", "qnet"]
        assert all(stage["cpu_s"] > 0 for stage in summary["stages"].values())
        imported = json.loads((runs / "imported" / "report.json").read_text())
        assert (imported["episodes"], imported["tasks"]) == (30, 6)
        assert imported["tool_calls"] == imported["actions"] > 30
        assert imported["differing_groups"] > 0
        with page.serving("runs/errands/trial"):
            page.run("/load")
            page.run("/alias")
            assert "of 20 errands succeeded" in page.run("--q-model trial")
            page.run_qguide("qguide report")
            page.run('"alias": "default"')
            moved = httpx.get(f"{page.url}/v1/models").json()["aliases"]["default"]
            assert moved == "house@v1"
    report = json.loads((runs / "report.json").read_text())
    arms = {arm["name"]: arm["episodes"] for arm in report["arms"]}
    assert sum(arms.values()) == 20
    assert set(arms) == {"house@v1", "one candidate"}
    assert page.done()
