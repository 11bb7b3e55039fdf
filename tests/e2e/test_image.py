"""The Dockerfile's own steps, without a container engine: the result serves and is ready.

`make test-image` runs it; it downloads torch and all else that the image installs.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.support.serving import ROOT, START_S, free_port

STEP_S = 3600
OPT = "/opt/qguide"
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
BUILD, _, FINAL = DOCKERFILE.rpartition("\nFROM ")
IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info")

pytestmark = pytest.mark.skipif(
    not os.environ.get("QGUIDE_TEST_IMAGE"), reason="downloads torch; `make test-image` runs it"
)


@dataclass(frozen=True)
class Image:
    """The files that the build stage leaves.

    Attributes:
        opt: what is /opt/qguide in the image.
    """

    opt: Path
    folder: Path

    def command(self, instruction: str) -> list[str]:
        """The program of a CMD, an ENTRYPOINT or a HEALTHCHECK of the final stage."""
        (given,) = re.findall(rf"{instruction} (\[.*\])$", FINAL, re.MULTILINE)
        program, *arguments = json.loads(given)
        return [str(self.opt / "bin" / program), *arguments]

    def environment(self, port: int) -> dict[str, str]:
        """The image's variables, without its bind address, which needs keys."""
        (given,) = re.findall(r"^ENV (.*)$", FINAL, re.MULTILINE)
        image = dict(word.split("=", 1) for word in given.split())
        here = {"HOME": str(self.folder), "QGUIDE_HOST": "127.0.0.1", "QGUIDE_PORT": str(port)}
        return image | here | {"PATH": f"{self.opt}/bin:/usr/bin:/bin"}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Run COPY and RUN of the build stage in order, in a folder instead of the root."""
    root = tmp_path_factory.mktemp("image")
    build, opt = root / "build", root / "opt"
    build.mkdir()
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", BUILD, re.MULTILINE))
    environment = os.environ | arguments | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment.pop("PYTHONPATH", None)
    for instruction, given in re.findall(r"^(COPY|RUN) (.+)$", BUILD, re.MULTILINE):
        if instruction == "COPY":
            *sources, target = given.split()
            for source in sources:
                name = Path(source).name if target.endswith("/") else ""
                _copy(ROOT / source, build / target / name)
            continue
        step = re.sub(r"^--mount=\S+ ", "", given).replace(OPT, str(opt))
        if index := os.environ.get("TORCH_INDEX"):
            step = re.sub(r'--index-url "[^"]*"', f'--index-url "{index}"', step)
        done = subprocess.run(
            ["sh", "-c", step], cwd=build, env=environment, capture_output=True, text=True, timeout=STEP_S, check=False
        )
        assert done.returncode == 0, f"{step}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    shutil.rmtree(build)  # the final stage has no sources
    data = root / "data"
    data.mkdir()
    return Image(opt, data)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=IGNORED, dirs_exist_ok=True)
    else:
        target.parent.mkdir(exist_ok=True)
        shutil.copy(source, target)


def test_the_installed_server_is_ready_by_its_own_health_check_and_acts(image: Image) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    # A collector needs the extra, which a plain installation does not have.
    environment = image.environment(port) | {"QGUIDE_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    command = [*image.command("^ENTRYPOINT"), "serve"]
    health = image.command("^HEALTHCHECK .* CMD")
    with (
        (image.folder / "log").open("wb") as log,
        subprocess.Popen(command, cwd=image.folder, env=environment, stderr=log) as process,
    ):
        try:
            deadline = time.monotonic() + START_S
            while subprocess.run(health, env=environment, stderr=subprocess.DEVNULL).returncode:
                assert process.poll() is None, (image.folder / "log").read_text()
                assert time.monotonic() < deadline, "never healthy"
                time.sleep(1)
            assert httpx.get(f"{url}/healthz").json()["status"] == "ok"
            body = {"messages": [{"role": "user", "content": "Your task is to: look around."}]}
            answer = httpx.post(f"{url}/v1/act", json=body, timeout=120).raise_for_status().json()
            assert answer["action"]
            assert answer["policy"] == "embedded"
        finally:
            process.terminate()
