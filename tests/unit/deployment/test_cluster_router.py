"""The cluster's router: a real nginx with docker/cluster/router.conf before four QGuide servers."""

import re
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from benchmarks.scale.ring import HashRing
from tests.support.serving import START_S, Serving, free_port, serving_process

CONFIGURATION = Path(__file__).parents[3] / "docker" / "cluster" / "router.conf"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin") or ""
SERVER_LINE = re.compile(r"server replica-\d:8000 (.*;)")
LISTEN = "listen 8000;"
REPLICAS, EPISODES, STEPS = 4, 16, 5
LEAST_SHARE = 0.95

pytestmark = pytest.mark.skipif(not NGINX, reason="no nginx; install it (Debian: apt-get install nginx-light)")


def start_replicas(folder: Path, stack: ExitStack) -> list[Serving]:
    """QGuide servers with scripted models that name themselves, all started at the same time."""

    def start(number: int) -> Serving:
        own = folder / f"replica-{number}"
        own.mkdir()
        return stack.enter_context(serving_process(own, environment={"QGUIDE_REPLICA": f"replica-{number}"}))

    with ThreadPoolExecutor(REPLICAS) as threads:
        return list(threads.map(start, range(REPLICAS)))


def configuration(folder: Path, addresses: Sequence[str], port: int) -> Path:
    """The configuration, before servers at these addresses and on a port of this machine."""
    text = CONFIGURATION.read_text()
    assert len(SERVER_LINE.findall(text)) == len(addresses)
    assert LISTEN in text
    lines = iter(addresses)
    text = SERVER_LINE.sub(lambda found: f"server {next(lines)} {found.group(1)}", text)
    path = folder / "router.conf"
    path.write_text(text.replace(LISTEN, f"listen 127.0.0.1:{port};"))
    return path


@contextmanager
def routed(folder: Path, addresses: Sequence[str]) -> Iterator[str]:
    """The router's address, before servers at these addresses."""
    said = folder / "router.log"
    for _ in range(5):  # another process may take the free port first
        port = free_port()
        path = configuration(folder, addresses, port)
        command = [NGINX, "-p", str(folder), "-c", str(path), "-g", "daemon off;"]
        with said.open("w") as log, subprocess.Popen(command, stderr=log) as nginx:
            try:
                if _has_its_port(nginx, folder / "router.pid"):
                    yield f"http://127.0.0.1:{port}"
                    return
            finally:
                nginx.send_signal(signal.SIGQUIT)
                nginx.wait(START_S)
        assert "Address already in use" in said.read_text(), said.read_text()
    raise AssertionError("nginx finds no free port")


def _has_its_port(nginx: subprocess.Popen[bytes], pid_file: Path) -> bool:
    """True once nginx listens, when it writes its process id; False if it ended before."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if pid_file.exists():
            return True
        if nginx.poll() is not None:
            return False
        time.sleep(0.05)
    raise AssertionError("nginx does not start")


def play(client: httpx.Client, addresses: Sequence[str]) -> Mapping[str, list[int]]:
    """The replicas that answered each episode's steps, all episodes side by side."""
    answered = defaultdict(list)
    messages = [{"role": "user", "content": "Find a way out."}]
    for _ in range(STEPS):
        for episode in range(EPISODES):
            name = f"task-{episode}"
            body = {"messages": messages, "num_candidates": 3, "episode_id": name}
            answer = client.post("/v1/act", json=body, headers={"X-Session-ID": name})
            assert answer.status_code == 200, answer.text
            replica = int(answer.headers["X-QGuide-Replica"].removeprefix("replica-"))
            # The router names the replica, too, by its address; of several tried, the last.
            assert answer.headers["X-Replica"].split(", ")[-1] == addresses[replica]
            answered[name].append(replica)
        messages += [
            {"role": "assistant", "content": "Action: look"},
            {"role": "user", "content": "You see a door. " * 20},
        ]
    return answered


def test_nothing_is_written_outside_its_folder(tmp_path: Path) -> None:
    path = configuration(tmp_path, [f"127.0.0.1:{free_port()}"] * REPLICAS, free_port())
    command = [NGINX, "-t", "-p", str(tmp_path), "-c", str(path)]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    assert tried.returncode == 0, tried.stderr
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = {found.name for found in tmp_path.iterdir() if found.is_dir()}
    assert folders == {f"{kind}_temp" for kind in kinds}


def test_episodes_stay_on_their_replica_and_leave_a_dead_one(tmp_path: Path) -> None:
    with ExitStack() as stack:
        replicas = start_replicas(tmp_path, stack)
        addresses = [replica.url.removeprefix("http://") for replica in replicas]
        url = stack.enter_context(routed(tmp_path, addresses))
        client = stack.enter_context(httpx.Client(base_url=url, timeout=START_S))
        ring = HashRing(addresses)

        before = play(client, addresses)
        homes = {name: ring.server_of(name) for name in before}
        returned = sum(each.count(homes[name]) for name, each in before.items())
        assert returned >= LEAST_SHARE * EPISODES * STEPS, before

        for name, home in homes.items():
            for path in (f"/episodes/{name}/version", f"/v1/episodes/{name}/outcome?from=test"):
                found = client.get(path).headers["X-QGuide-Replica"]
                assert found == f"replica-{home}", path

        dead = homes["task-0"]
        replicas[dead].process.kill()
        replicas[dead].process.wait(START_S)
        after = play(client, addresses)  # every request is answered
        heirs = {name: ring.server_of(name, dead={dead}) for name in after}
        assert all(heirs[name] == home for name, home in homes.items() if home != dead)
        moved = sum(each.count(heirs[name]) for name, each in after.items())
        assert moved >= LEAST_SHARE * EPISODES * STEPS, after

        without_session = {client.get("/version").headers["X-QGuide-Replica"] for _ in range(20 * REPLICAS)}
        assert without_session == {f"replica-{n}" for n in range(REPLICAS) if n != dead}
