"""The chart for the Prometheus operator: monitors, alerts and the dashboard."""

import json
import re
from pathlib import Path

import yaml

from tests.support.helm_chart import CHART, KEYS, helm, needs_helm, one, rendered
from tests.support.serving import ROOT

COMPOSE = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]

pytestmark = needs_helm


def test_prometheus_asks_for_metrics_with_a_key_and_grafana_gets_the_one_dashboard(tmp_path: Path) -> None:
    assert helm("package", str(CHART), "-d", str(tmp_path)).returncode == 0
    (package,) = tmp_path.glob("*.tgz")
    documents = rendered("everything.yaml", chart=package)
    assert documents == rendered("everything.yaml")
    board = one(documents, "ConfigMap", "qguide-dashboard")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(board["data"]["qguide.json"]) == json.loads((CHART / "dashboards/qguide.json").read_text())
    monitor, service = one(documents, "ServiceMonitor"), one(documents, "Service")
    labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert endpoint["authorization"] == {"credentials": {"name": "qguide-prometheus", "key": "key"}}
    assert endpoint["path"] == "/metrics"


def test_the_dashboard_finds_a_server_of_another_name() -> None:
    (job,) = re.findall(r'job=\\"(\w+)', (CHART / "dashboards/qguide.json").read_text())
    documents = rendered("everything.yaml", "nameOverride=values")
    (endpoint,) = one(documents, "ServiceMonitor", "qguide-values")["spec"]["endpoints"]
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": job}]


def test_the_alerts_of_the_compose_file_are_the_charts() -> None:
    rule = one(rendered("everything.yaml"), "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    (mounted,) = [v for v in COMPOSE["prometheus"]["volumes"] if "rules.yml" in v]
    source = (ROOT / "docker" / mounted.split(":")[0]).resolve()
    assert source.is_relative_to(CHART)
    assert rule["spec"] == yaml.safe_load(source.read_text())
    assert "PrometheusRule" not in {d["kind"] for d in rendered(KEYS)}


def test_prometheus_scrapes_the_charts_vllm_and_nobody_else_may() -> None:
    documents = rendered("everything.yaml")
    monitor, service = (one(documents, k, "qguide-vllm") for k in ("ServiceMonitor", "Service"))
    matched = monitor["spec"]["selector"]["matchLabels"]
    assert matched.items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    alerts = one(documents, "PrometheusRule")["spec"]["groups"][0]["rules"]
    (job,) = {re.findall(r'job="(\w+)"', a["expr"])[0] for a in alerts if a["alert"] == "VllmDown"}
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": job}]
    (own, scrape) = one(documents, "NetworkPolicy", "qguide-vllm")["spec"]["ingress"]
    assert own["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "server"
    assert "namespaceSelector" in scrape["from"][0]
    without = rendered("everything.yaml", "metrics.vllmMonitor.enabled=false")
    assert len(one(without, "NetworkPolicy", "qguide-vllm")["spec"]["ingress"]) == 1
