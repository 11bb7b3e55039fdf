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

from server.app import create_app
from server.settings.settings import SCRIPTED, Settings

DOCKER = Path(__file__).parents[3] / "docker"
SERVICES = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
DASHBOARD = json.loads((DOCKER / "helm/qguide/dashboards/qguide.json").read_text())
SOURCE = yaml.safe_load((DOCKER / "grafana/provisioning/datasources/prometheus.yaml").read_text())
PROVIDER = yaml.safe_load((DOCKER / "grafana/provisioning/dashboards/qguide.yaml").read_text())
SCRAPES = yaml.safe_load((DOCKER / "prometheus/prometheus.yml").read_text())["scrape_configs"]
EXPRESSIONS = [t["expr"] for panel in DASHBOARD["panels"] for t in panel["targets"]]
METRIC = re.compile(r"\bqguide_\w+")
SELECTED = re.compile(r"\b(qguide_\w+)\{(.*?)\}")
GROUPED = re.compile(r"by \((.*?)\)")

SHADOW_S = 20.0

Samples = dict[str, set[str]]


@pytest.fixture(scope="module")
def samples() -> Samples:
    """Series that a server with a shadow and a Redis tells after one request, and their labels."""
    settings = Settings(
        policy=SCRIPTED,
        q_models={"a@1": SCRIPTED, "b@1": SCRIPTED},
        shadows={"a": "b"},
        redis_url=SecretStr("redis://127.0.0.1:9/0"),  # gone, which is told as well
    )
    with TestClient(create_app(settings), "http://localhost") as client:
        body = {"messages": [{"role": "user", "content": "look"}]}
        assert client.post("/v1/act", json=body).status_code == 200
        told = client.get("/metrics").text
        patience = monotonic() + SHADOW_S  # nobody waits for a shadow's score but this test
        while "qguide_shadow_requests_total{" not in told and monotonic() < patience:
            told = client.get("/metrics").text
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(told)
        for sample in family.samples
    }


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_metric_and_label_of_a_panel_is_told(expression: str, samples: Samples) -> None:
    metrics = METRIC.findall(expression)
    assert metrics or expression == 'min(up{job="qguide"})'
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
    (scrape,) = SCRAPES
    assert scrape["static_configs"] == [{"targets": ["server:8000"]}]
    assert scrape.get("metrics_path", "/metrics") == "/metrics"
    aliases = SERVICES["server-gpu"]["networks"]["default"]["aliases"]
    assert aliases == ["server"]
    for name in ("server", "server-gpu"):
        assert SERVICES[name]["ports"][0].endswith(":8000")


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
