"""Prometheus finds the server, Grafana finds Prometheus, and every panel asks for what exists."""

import json
import re
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from qguide.server.app import create_app
from qguide.server.http.keys import create_key
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import SCRIPTED, Settings

DOCKER = Path(__file__).parents[3] / "docker"
SERVICES = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
DASHBOARD = json.loads((DOCKER / "helm/qguide/dashboards/qguide.json").read_text())
SOURCE = yaml.safe_load((DOCKER / "grafana/provisioning/datasources/prometheus.yaml").read_text())
PROVIDER = yaml.safe_load((DOCKER / "grafana/provisioning/dashboards/qguide.yaml").read_text())
PROMETHEUS = yaml.safe_load((DOCKER / "prometheus/prometheus.yml").read_text())
SCRAPES = PROMETHEUS["scrape_configs"]
EXPRESSIONS = [t["expr"] for panel in DASHBOARD["panels"] for t in panel["targets"]]
RULES = yaml.safe_load((DOCKER / "helm/qguide/alerts/rules.yml").read_text())
ALERTS = [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]
VLLMS = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
"""Metrics of vLLM that a panel shows; its own, so no server of ours tells them."""
METRIC = re.compile(r"\bqguide_\w+")
SELECTED = re.compile(r"\b(qguide_\w+)\{(.*?)\}")
GROUPED = re.compile(r"by \((.*?)\)")

SHADOW_S = 20.0

Samples = dict[str, set[str]]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """Series that a server with all that panels show tells after one request, and their labels."""
    folder = tmp_path_factory.mktemp("server")
    keys_file = folder / "keys.json"
    bearer = {"Authorization": f"Bearer {create_key(keys_file, 'ada')}"}
    gone = "http://127.0.0.1:9"
    settings = Settings(
        policy=SCRIPTED,
        keys_file=keys_file,
        upstreams={"gone": Upstream.model_validate({"url": f"{gone}/v1", "model": "m"})},
        q_models={"a@1": SCRIPTED, "b@1": SCRIPTED, "judge": "judge:gone"},
        shadows={"a": "b"},
        redis_url=SecretStr("redis://127.0.0.1:9/0"),  # gone, which is told as well
        learn=True,
        episodes_dir=folder / "episodes",
    )
    with TestClient(create_app(settings), "http://localhost", headers=bearer) as client:
        body = {"messages": [{"role": "user", "content": "look"}]}
        assert client.post("/v1/act", json=body).status_code == 200
        told = client.get("/metrics").text
        patience = monotonic() + SHADOW_S  # nobody waits for these but this test
        late = ("qguide_shadow_requests_total{", "qguide_upstream_up{")
        while not all(name in told for name in late) and monotonic() < patience:
            told = client.get("/metrics").text
    return {
        sample.name: set(sample.labels) for family in text_string_to_metric_families(told) for sample in family.samples
    }


@pytest.mark.parametrize("expression", EXPRESSIONS + ALERTS)
def test_every_metric_and_label_of_a_panel_and_an_alert_is_told(expression: str, samples: Samples) -> None:
    metrics = METRIC.findall(expression)
    assert metrics or "up{job=" in expression or any(name in expression for name in VLLMS)
    if not metrics:
        return
    for metric in metrics:
        assert metric in samples
    for metric, selectors in SELECTED.findall(expression):
        assert set(re.findall(r"(\w+)\s*=", selectors)) <= samples[metric], metric
    labels = {label.strip() for group in GROUPED.findall(expression) for label in group.split(",")}
    assert all(labels <= samples[metric] for metric in metrics)


def test_the_dashboard_shows_what_an_operator_asks_first() -> None:
    asked = " ".join(EXPRESSIONS)
    for metric in (
        "qguide_requests_total",
        "qguide_stage_seconds_bucket",
        "qguide_queue_seconds_bucket",
        "qguide_scorer_tokens_total",
        "qguide_completion_tokens_total",
        "qguide_cache_evictions_total",
        "qguide_prompt_tokens_total",
        "qguide_paraphrase_tokens_total",
        "qguide_unguided_total",
        "qguide_draws_saved_total",
        "qguide_redis_up",
        "qguide_episodes_total",
        "qguide_episode_reward_total",
        "qguide_upstream_up",
        "qguide_judge_calls_total",
        "qguide_judge_tokens_total",
        "qguide_threshold_actions_total",
        "qguide_threshold_tokens_total",
        "qguide_key_requests_total",
        "qguide_learning_phase",
        "qguide_learning_difference",
        "qguide_unrecorded_episodes_total",
        *VLLMS,
    ):
        assert metric in asked
    assert 'status=~"4..|5.."' in asked
    for quantile in ("0.5", "0.95"):
        assert f"histogram_quantile({quantile}, sum by (le, stage)" in asked


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [cell for panel in panels for cell in _cells(panel["gridPos"])]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def _cells(place: dict[str, int]) -> list[tuple[int, int]]:
    across = range(place["x"], place["x"] + place["w"])
    down = range(place["y"], place["y"] + place["h"])
    return [(x, y) for x in across for y in down]


def test_prometheus_asks_the_server_by_the_name_and_port_that_it_has() -> None:
    scrape, vllm = SCRAPES
    (found,) = vllm["dns_sd_configs"]
    assert found == {"names": ["vllm"], "type": "A", "port": 8000}
    assert "vllm" in SERVICES
    assert scrape["static_configs"] == [{"targets": ["server:8000"]}]
    assert scrape.get("metrics_path", "/metrics") == "/metrics"
    for name in ("server-judge", "server-gpu"):
        assert SERVICES[name]["networks"]["default"]["aliases"] == ["server"]
    for name in ("server-judge", "server", "server-gpu"):
        assert SERVICES[name]["ports"][0].endswith(":8000")


def test_prometheus_reads_alerts_that_say_what_is_wrong() -> None:
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["prometheus"]["volumes"])
    (path,) = PROMETHEUS["rule_files"]
    assert mounts["./helm/qguide/alerts/rules.yml"] == path
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    names = [rule["alert"] for rule in rules]
    assert len(set(names)) == len(names)
    page = (DOCKER.parent / "docs/operate/monitoring.md").read_text()
    for rule in rules:
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert f"`{rule['alert']}`" in page, "the page says what to do"


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    (source,) = SOURCE["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert {_source_of(panel) for panel in DASHBOARD["panels"]} == {source["uid"]}
    (provider,) = PROVIDER["providers"]
    mounts = [volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"]]
    assert ["./helm/qguide/dashboards", provider["options"]["path"]] in mounts
    assert ["./grafana/provisioning", "/etc/grafana/provisioning"] in mounts


def _source_of(panel: dict[str, Any]) -> str:
    (source,) = {target["datasource"]["uid"] for target in panel["targets"]}
    return str(source)
