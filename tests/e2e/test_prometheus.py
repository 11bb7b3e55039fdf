"""Every panel's query against a real Prometheus that scrapes a real server."""

import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
import yaml

from qguide.server.http.keys import create_key
from tests.support.serving import ROOT, free_port, serving

BINARY = shutil.which("prometheus") or os.environ.get("QGUIDE_PROMETHEUS", "")
START_S = 180.0
DATA_S = 60.0
DASHBOARD = json.loads((ROOT / "docker/helm/qguide/dashboards/qguide.json").read_text())
CONFIG = yaml.safe_load((ROOT / "docker/prometheus/prometheus.yml").read_text())
TARGETS = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
EXPRESSIONS = [target["expr"] for target in TARGETS if "vllm:" not in target["expr"]]
TASK = {"role": "user", "content": "You see a desk 1. Your task is to: look around."}

pytestmark = pytest.mark.skipif(not BINARY, reason="no prometheus on PATH (Debian: apt-get install prometheus)")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A Prometheus that has scraped a server which did everything that the panels show."""
    folder = tmp_path_factory.mktemp("prometheus")
    keys_file = folder / "keys.json"
    bearer = {"Authorization": f"Bearer {create_key(keys_file, 'ada')}"}
    scraper = folder / "qguide.key"
    scraper.write_text(create_key(keys_file, "prometheus", metrics=True))
    environment = {
        "QGUIDE_KEYS_FILE": str(keys_file),
        "QGUIDE_UPSTREAMS": '{"gone": {"url": "http://127.0.0.1:9/v1", "model": "m"}}',
        "QGUIDE_Q_MODELS": '{"a@1": "scripted", "b@1": "scripted", "judge": "judge:gone"}',
        "QGUIDE_SHADOWS": '{"a": "b"}',
        "QGUIDE_PARAPHRASER": "scripted",
        "QGUIDE_REDIS_URL": "redis://127.0.0.1:9/0",
        "QGUIDE_LEARN": "true",
        "QGUIDE_EPISODES_DIR": str(folder / "episodes"),
    }
    options = ("--policy", "scripted")
    with serving(*options, env=environment, log=folder / "log", start_s=START_S) as url:
        port = free_port()
        config = json.loads(json.dumps(CONFIG))
        config["global"]["scrape_interval"] = "1s"
        scrape, _vllm = config["scrape_configs"]
        config["scrape_configs"] = [scrape]
        config["rule_files"] = [str(ROOT / "docker/helm/qguide/alerts/rules.yml")]
        scrape["authorization"]["credentials_file"] = str(scraper)
        scrape["static_configs"] = [{"targets": [url.removeprefix("http://")]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        command = [BINARY, f"--config.file={folder / 'prometheus.yml'}"]
        command += [f"--storage.tsdb.path={folder / 'data'}"]
        command += [f"--web.listen-address=127.0.0.1:{port}"]
        with (
            (folder / "prometheus.log").open("wb") as log,
            subprocess.Popen(command, stderr=log, stdout=log) as process,
            httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
        ):
            try:
                _wait(lambda: client.get("/-/ready").status_code == 200, START_S)
                _wait(lambda: bool(_ask(client, "qguide_episodes_total")), START_S)
                with httpx.Client(base_url=url, headers=bearer, timeout=30) as caller:
                    _keep_busy(caller, client)
                yield client
            finally:
                process.terminate()


def _keep_busy(caller: httpx.Client, prometheus: httpx.Client) -> None:
    """Send requests until there is data for every panel, or time is up."""
    deadline = time.monotonic() + DATA_S
    for k in itertools.count():
        asked = {"messages": [TASK], "episode_id": f"e{k}", "perturb": True}
        caller.post("/v1/act", json=asked).raise_for_status()
        caller.post(f"/v1/episodes/e{k}/outcome", json={"reward": 0.5}).raise_for_status()
        caller.get("/v1/nowhere")
        caller.post("/v1/chat/completions", json={"model": "gone", "messages": [TASK]})
        if time.monotonic() > deadline or all(_ask(prometheus, _query(e)) for e in EXPRESSIONS):
            return
        time.sleep(0.5)


def _query(expression: str) -> str:
    """The query with a time in place of Grafana's variable."""
    return expression.replace("$__rate_interval", "1m").replace("$__range", "5m")


def _ask(client: httpx.Client, query: str) -> list[Any]:
    answer = client.get("/api/v1/query", params={"query": query}).json()
    assert answer["status"] == "success", f"{query}: {answer}"
    found: list[Any] = answer["data"]["result"]
    return found


def _wait(done: Callable[[], bool], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if done():
                return
        time.sleep(0.2)
    pytest.fail(f"not done after {patience_s} s")


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_query_of_the_dashboard_is_understood_and_answered(expression: str, prometheus: httpx.Client) -> None:
    assert _ask(prometheus, _query(expression)), "no data"


def test_every_alert_is_understood(prometheus: httpx.Client) -> None:
    (group,) = prometheus.get("/api/v1/rules").json()["data"]["groups"]
    assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
    assert len(group["rules"]) > 5


def test_the_arms_mean_reward_is_what_was_told(prometheus: httpx.Client) -> None:
    (panel,) = (p for p in DASHBOARD["panels"] if p["title"] == "Reward per episode, by arm")
    answer = _ask(prometheus, _query(panel["targets"][0]["expr"]))
    means = {one["metric"]["q_model"]: float(one["value"][1]) for one in answer}
    assert means["a@1"] == pytest.approx(0.5)
