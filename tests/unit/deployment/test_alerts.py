"""Each alert fires for what it is there for, after its time, and is silent just below its limit."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.support.serving import ROOT

RULES = ROOT / "docker/helm/qguide/alerts/rules.yml"
ALERTS = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
PROMTOOL = shutil.which("promtool")
MINUTES = 60

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool on PATH (Debian: apt-get install prometheus)")


class Case(NamedTuple):
    """Series that raise an alert and series that do not; values a minute, in Prometheus' notation.

    Attributes:
        labels: of the alert, beside its severity.
    """

    fires: dict[str, str]
    silent: dict[str, str]
    labels: dict[str, str]
    says: str


def constant(value: int) -> str:
    return f"{value}+0x{MINUTES}"


def growing(by: int) -> str:
    return f"0+{by}x{MINUTES}"


def waiting(slow: int) -> dict[str, str]:
    """A histogram of a hundred scores a minute, of which `slow` wait more than five seconds."""
    name = 'qguide_queue_seconds_bucket{q_model="q",le="%s"}'
    return {name % "5": growing(100 - slow), name % "10": growing(100), name % "+Inf": growing(100)}


SERVER = {"instance": "server:8000", "job": "qguide"}
VLLM = {"instance": "vllm:8000", "job": "vllm"}
UNRECORDED = 'qguide_unrecorded_episodes_total{cause="episode"}'
GUIDING = 'qguide_learning_phase{group="+shop",phase="guiding"}'
CASES = {
    "QGuideDown": Case(
        {'up{job="qguide",instance="server:8000"}': constant(0)},
        {'up{job="qguide",instance="server:8000"}': constant(1)},
        SERVER,
        "server:8000 does not answer /metrics",
    ),
    "QGuideFails": Case(
        {'qguide_requests_total{status="200"}': growing(90), 'qguide_requests_total{status="503"}': growing(10)},
        {'qguide_requests_total{status="200"}': growing(96), 'qguide_requests_total{status="503"}': growing(4)},
        {},
        "10% of all requests end in 5xx",
    ),
    "QGuideUpstreamDown": Case(
        {'qguide_upstream_up{upstream="gpt",replica="a"}': constant(0)},
        {'qguide_upstream_up{upstream="gpt",replica="a"}': constant(1)},
        {"upstream": "gpt"},
        "the upstream gpt is down",
    ),
    "QGuideRedisDown": Case(
        {'qguide_redis_up{replica="a"}': constant(1), 'qguide_redis_up{replica="b"}': constant(0)},
        {'qguide_redis_up{replica="a"}': constant(1)},
        {},
        "Redis does not answer: each replica counts limits by itself",
    ),
    "QGuideWaits": Case(waiting(10), waiting(4), {"q_model": "q"}, "scores of q wait 7.5s for the device"),
    "QGuideUnguided": Case(
        {'qguide_unguided_total{q_model="q@1"}': growing(30), "qguide_distinct_candidates_count": growing(100)},
        # Where nothing scores, all steps are unguided, which is no failure.
        {'qguide_unguided_total{q_model="none@1"}': growing(100), "qguide_distinct_candidates_count": growing(100)},
        {},
        "30% of all steps have no usable Q",
    ),
    "QGuideJudgeFails": Case(
        {
            'qguide_judge_calls_total{q_model="judge",outcome="scored"}': growing(80),
            'qguide_judge_calls_total{q_model="judge",outcome="failed"}': growing(10),
            'qguide_judge_calls_total{q_model="judge",outcome="unparseable"}': growing(10),
            'qguide_judge_calls_total{q_model="judge",outcome="cached"}': growing(900),
        },
        {
            'qguide_judge_calls_total{q_model="judge",outcome="scored"}': growing(95),
            'qguide_judge_calls_total{q_model="judge",outcome="failed"}': growing(5),
        },
        {"q_model": "judge"},
        "20% of the questions to judge get no score",
    ),
    "QGuideStopsSteps": Case(
        {'qguide_threshold_actions_total{q_model="q",action="stop"}': growing(60)},
        {
            'qguide_threshold_actions_total{q_model="q",action="stop"}': growing(3),
            'qguide_threshold_actions_total{q_model="q",action="draw"}': growing(60),
        },
        {"q_model": "q"},
        "1 steps a second are stopped below the threshold of q",
    ),
    "QGuideDiskFull": Case(
        {'qguide_unrecorded_episodes_total{cause="disk"}': growing(1)},
        {'qguide_unrecorded_episodes_total{cause="disk"}': constant(5), UNRECORDED: growing(1)},
        {},
        "episodes cannot be written to QGUIDE_EPISODES_DIR",
    ),
    "QGuideNotRecorded": Case(
        {UNRECORDED: growing(30), 'qguide_episodes_total{q_model="q"}': growing(100)},
        {UNRECORDED: growing(10), 'qguide_episodes_total{q_model="q"}': growing(100)},
        {},
        "30% of all episodes are not recorded",
    ),
    "QGuideLearningFails": Case(
        {'qguide_learning_fits_total{group="+shop",outcome="failed"}': growing(1)},
        {'qguide_learning_fits_total{group="+shop",outcome="licensed"}': growing(1)},
        {"group": "+shop"},
        "fits of +shop fail",
    ),
    "QGuideRolledBack": Case(
        {GUIDING: f"1+0x9 0+0x{MINUTES}"},
        {GUIDING: f"0+0x9 1+0x{MINUTES}"},
        {"group": "+shop"},
        "+shop is not guided any more",
    ),
    "QGuideKeyAtItsLimit": Case(
        {
            'qguide_key_requests_total{key="ada",status="429"}': growing(60),
            'qguide_key_requests_total{key="ada",status="200"}': growing(40),
        },
        {
            'qguide_key_requests_total{key="ada",status="429"}': growing(40),
            'qguide_key_requests_total{key="ada",status="200"}': growing(60),
        },
        {"key": "ada"},
        "most requests of the key ada are above its limits",
    ),
    "QGuideWrongKeys": Case(
        {'qguide_requests_total{status="401"}': growing(12)},
        {'qguide_requests_total{status="401"}': growing(5)},
        {},
        "120 requests in ten minutes have no valid key",
    ),
    "VllmDown": Case(
        {'up{job="vllm",instance="vllm:8000"}': constant(0)},
        {'up{job="vllm",instance="vllm:8000"}': constant(1)},
        VLLM,
        "vLLM at vllm:8000 does not answer",
    ),
}


def test_every_alert_has_a_case_and_a_remedy() -> None:
    assert [alert["alert"] for alert in ALERTS] == list(CASES)
    page = (ROOT / "docs/operate/monitoring.md").read_text()
    table = page.partition("## Alerts")[2].partition("\n## ")[0]
    assert set(re.findall(r"`((?:QGuide|Vllm)\w+)`", table)) == set(CASES)


@needs_promtool
def test_prometheus_itself_accepts_the_rules() -> None:
    assert PROMTOOL
    command = [PROMTOOL, "check", "rules", str(RULES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(CASES)} rules found" in done.stdout


@needs_promtool
@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_it_fires_after_its_time_and_below_its_limit_never(alert: dict[str, Any], tmp_path: Path) -> None:
    assert PROMTOOL
    name = str(alert["alert"])
    case = CASES[name]
    raised = {
        "exp_labels": {"severity": alert["labels"]["severity"], **case.labels},
        "exp_annotations": {"summary": case.says},
    }
    patience = int(str(alert["for"]).removesuffix("m"))

    def told(series: dict[str, str], *expected: tuple[int, bool]) -> dict[str, object]:
        return {
            "interval": "1m",
            "input_series": [{"series": s, "values": v} for s, v in series.items()],
            "alert_rule_test": [
                {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": [raised] if fires else []}
                for minute, fires in expected
            ],
        }

    written = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [told(case.fires, (patience - 1, False), (MINUTES, True)), told(case.silent, (MINUTES, False))],
    }
    file = tmp_path / "alerts.yml"
    file.write_text(yaml.safe_dump(written))
    command = [PROMTOOL, "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
