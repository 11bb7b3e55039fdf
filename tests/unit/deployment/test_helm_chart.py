"""The Helm chart: what helm makes of it is what Kubernetes and the server understand.

helm itself renders, Kubernetes' own schemas judge. No cluster has had it.
"""

import json
import re
import shutil
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.support.helm_chart import (
    CASES,
    CHART,
    KEYS,
    VALUES,
    Document,
    environment,
    helm,
    needs_helm,
    one,
    pods,
    rendered,
    server_of,
    template,
)
from tests.support.serving import ROOT

COMPOSE = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()
OLDEST, NEWEST = "1.25", "1.37"
MODELS = "persistence.models.enabled=true"
ONE_NODES_MODELS = (
    MODELS,
    "persistence.models.existingClaim=checkpoints",
    "persistence.models.accessModes={ReadWriteOnce}",
)

pytestmark = needs_helm


def test_helm_finds_nothing_to_complain_of() -> None:
    done = helm("lint", "--strict", str(CHART), "-f", str(VALUES / "everything.yaml"))
    assert done.returncode == 0, done.stdout
    assert not re.search(r"WARNING|ERROR", done.stdout), done.stdout


@pytest.mark.parametrize(("case", "version"), [*((case, NEWEST) for case in CASES), ("everything", OLDEST)])
def test_kubernetes_knows_every_field(case: str, version: str) -> None:
    kinds = []
    for document in rendered(*CASES[case]):
        kinds.append(document["kind"])
        if document["kind"] not in ("ServiceMonitor", "PrometheusRule"):  # tests of their own
            kubernetes_validate.validate(document, version, strict=True)
    assert {"Deployment", "Service"} <= set(kinds)


def test_the_chart_asks_for_the_oldest_kubernetes_that_is_tested() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={OLDEST}.0-0"


def test_a_field_that_kubernetes_does_not_know_would_be_found() -> None:
    service = one(rendered(KEYS), "Service")
    wrong = service | {"spec": service["spec"] | {"prots": []}}
    with pytest.raises(kubernetes_validate.ValidationError, match="prots"):
        kubernetes_validate.validate(wrong, NEWEST, strict=True)


def test_the_app_is_of_the_packages_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("replicas=2", "Additional property replicas is not allowed"),
        ("settings.num_candidate=3", "settings: Additional property num_candidate is not allowed"),
        ("settings.num_candidates=0", "settings.num_candidates: Must be greater than or equal to 1"),
        ("settings.fallback=never", 'must be one of the following: "error", "first"'),
        ("settings.upstreams.gpt.url=http://models", "settings.upstreams.gpt: model is required"),
        ("service.port=http", "service.port: Invalid type. Expected: integer, given: string"),
        ("persistence.data.size=ten", "persistence.data.size: Does not match pattern"),
    ],
)
def test_a_wrong_value_is_refused_and_named(wrong: str, said: str) -> None:
    done = template(KEYS, wrong)
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize(
    ("values", "remedies"),
    [
        ((), ["qguide keys create", "keys.existingSecret=", "keys.onDataVolume=", "insecure=true"]),
        (("keys.onDataVolume=true",), ["persistence.data.enabled=true"]),
        ((KEYS, "insecure=true"), ["insecure=false"]),
        ((KEYS, "keys.onDataVolume=true"), ["set only one"]),
        (("insecure=true", "settings.admin=true"), ["keys.existingSecret"]),
        ((KEYS, "settings.redis_url=redis://x"), ["redis.url", "redis.existingSecret"]),
        ((KEYS, "settings.keys_file=/k"), ["keys.existingSecret", "keys.onDataVolume"]),
        ((KEYS, "redis.url=redis://:secret@x"), ["redis.existingSecret"]),
        ((KEYS, "redis.enabled=true", "redis.url=redis://x"), ["set only one"]),
        (("cpu-redis.yaml", "settings.upstreams.gpt.api_key=sk"), ["api_key_secret: {name:"]),
        (("everything.yaml", "settings.upstreams.vllm.url=http://x",
          "settings.upstreams.vllm.model=m"), ["vllm.enabled=false"]),
        ((KEYS, "persistence.data.enabled=true", "replicaCount=2"),
         ["persistence.data.accessModes={ReadWriteMany}"]),
        ((KEYS, *ONE_NODES_MODELS, "replicaCount=2"),
         ["persistence.models.accessModes={ReadWriteMany}"]),
        ((KEYS, *ONE_NODES_MODELS, "autoscaling.enabled=true"), ["or use one replica"]),
        ((KEYS, MODELS), ["existingClaim=", "readOnly=false", "accessModes={ReadWriteMany}"]),
        ((KEYS, MODELS, "persistence.models.readOnly=false"), ["existingClaim="]),
        ((KEYS, MODELS, "persistence.models.accessModes={ReadWriteMany}"), ["existingClaim="]),
        ((KEYS, "vllm.enabled=true", "settings.vllm=Qwen/Qwen3-8B"),
         ["vllm.model", "vllm.enabled=false"]),
        ((KEYS, "metrics.serviceMonitor.enabled=true"), ["keySecret.name", "public_metrics"]),
        ((KEYS, "metrics.vllmMonitor.enabled=true"), ["vllm.enabled=true"]),
        ((KEYS, "metrics.vllmMonitor.enabled=true", "vllm.enabled=true"),
         ["metrics.vllmMonitor.from"]),
        ((KEYS, "ingress.enabled=true"), ["ingress.hosts"]),
    ],
)  # fmt: skip
def test_values_that_cannot_work_are_refused_with_the_remedy(values: tuple[str, ...], remedies: list[str]) -> None:
    done = template(*values)
    assert done.returncode != 0
    for remedy in remedies:
        assert remedy in done.stderr


@pytest.mark.parametrize("values", [("cpu-redis.yaml",), ("everything.yaml",), ("insecure=true",)])
def test_no_secret_stands_in_what_everyone_may_read(values: tuple[str, ...]) -> None:
    documents = rendered(*values)
    assert "Secret" not in {document["kind"] for document in documents}
    text = json.dumps([d for d in documents if d["kind"] != "ConfigMap"])
    assert set(re.findall(r'api_key\W+"([^"\\]*)', text)) <= {
        "$(UPSTREAMS_KEY_0)",
        "$(VLLM_TRUNKS_KEY_0)",
        "$(CLASSIFIERS_KEY_0)",
    }
    assert [d["metadata"]["name"] for d in documents if d["kind"] == "ConfigMap"] == (
        ["qguide-dashboard"] if values == ("everything.yaml",) else []
    )


@pytest.mark.parametrize("values", [CASES["volume"], CASES["everything"]])
def test_no_container_can_gain_rights(values: tuple[str, ...]) -> None:
    for name, pod in pods(rendered(*values)).items():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        # QGUIDE_PORT=tcp://… of a Service called qguide, VLLM_PORT of one called vllm
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            if name != "qguide-vllm":  # its image runs as root and compiles for itself
                assert context["readOnlyRootFilesystem"] is True
                assert spec["securityContext"]["runAsNonRoot"] is True


def test_the_pod_is_the_images() -> None:
    documents = rendered(KEYS)
    spec, server = pods(documents)["qguide"]["spec"], server_of(documents)
    user, group = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)[0]
    context = spec["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (int(user), int(group))
    (port,) = re.findall(r"^EXPOSE (\d+)$", DOCKERFILE, re.MULTILINE)
    assert [one["containerPort"] for one in server["ports"]] == [int(port)]
    assert "command" not in server
    assert "args" not in server
    assert {"name": "data", "mountPath": "/data"} in server["volumeMounts"]
    assert server["image"] == COMPOSE["server"]["image"]
    assert server_of(rendered("gpu-vllm.yaml"))["image"] == COMPOSE["server-gpu"]["image"]


def test_requests_in_flight_are_waited_for() -> None:
    compose_s = int(COMPOSE["server"]["stop_grace_period"].removesuffix("s"))
    for values, more_s in ((KEYS, 0), ("everything.yaml", 120 - 90)):
        spec = pods(rendered(values))["qguide"]["spec"]
        sleep, before_s = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert sleep == "sleep"
        assert spec["terminationGracePeriodSeconds"] == compose_s + int(before_s) + more_s


def test_a_gpu_is_asked_for_and_never_twice() -> None:
    documents = rendered("everything.yaml")
    for name, count in (("qguide", 1), ("qguide-vllm", 4)):
        (container,) = pods(documents)[name]["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == count
    rolling = one(documents, "Deployment")["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 0, "maxUnavailable": 1}
    for name in ("qguide", "qguide-vllm"):
        deployment = one(rendered("gpu-vllm.yaml"), "Deployment", name)
        assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert "nvidia.com/gpu" not in json.dumps(rendered(KEYS))


def test_gpus_are_not_scaled_by_the_cpu() -> None:
    scaler = one(rendered("everything.yaml"), "HorizontalPodAutoscaler")
    assert [metric["type"] for metric in scaler["spec"]["metrics"]] == ["Pods"]


@pytest.mark.parametrize(
    ("more", "strategy"),
    [
        ((), "RollingUpdate"),
        (("persistence.data.enabled=true",), "Recreate"),
        (ONE_NODES_MODELS, "Recreate"),
        (ONE_NODES_MODELS[:2], "RollingUpdate"),  # read-only, on many nodes
        ((MODELS, "persistence.models.readOnly=false",
          "persistence.models.accessModes={ReadWriteMany}"), "RollingUpdate"),
    ],
)  # fmt: skip
def test_a_volume_of_one_node_is_let_go_before_the_next_pod(more: tuple[str, ...], strategy: str) -> None:
    assert one(rendered(KEYS, *more), "Deployment")["spec"]["strategy"]["type"] == strategy


def test_no_pod_starts_anew_because_the_chart_has_another_version(tmp_path: Path) -> None:
    values = ("insecure=true", "redis.enabled=true", "vllm.enabled=true")
    chart = shutil.copytree(CHART, tmp_path / "chart")
    about = chart / "Chart.yaml"
    about.write_text(about.read_text().replace("ersion: 0.1.0", "ersion: 9.9.9"))
    newer = rendered(*values, chart=chart)
    assert one(newer, "Deployment")["metadata"]["labels"]["helm.sh/chart"] == "qguide-9.9.9"
    assert pods(newer) == pods(rendered(*values))


def test_a_long_name_leaves_room_for_what_kubernetes_appends() -> None:
    documents = rendered(KEYS, "redis.enabled=true", f"fullnameOverride={'q' * 60}")
    (name,) = (d["metadata"]["name"] for d in documents if d["kind"] == "StatefulSet")
    revision = "7d4b9c6f5d"
    assert len(f"{name}-{revision}") <= 63  # the pods' label controller-revision-hash


def test_numbers_of_a_values_file_stay_whole(tmp_path: Path) -> None:
    """There helm takes them for floats, which a template would write as 1.01e+06."""
    many = 1_010_000
    values = {
        "insecure": True,
        "replicaCount": many,
        "gpu": {"enabled": True, "count": many},
        "vllm": {"enabled": True, "maxModelLen": many, "gpu": {"count": many}, "startupTimeoutSeconds": 10 * many},
        "settings": {"drain_delay_s": many, "shutdown_timeout_s": many},
        "autoscaling": {"minReplicas": many, "maxReplicas": many, "targetCPUUtilizationPercentage": many},
        "podDisruptionBudget": {"enabled": True, "maxUnavailable": many},
        "preStopSeconds": many,
        "startupTimeoutSeconds": 5 * many,
    }
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    for more in ((), ("autoscaling.enabled=true",)):
        documents = rendered(str(file), *more)
        for document in documents:
            kubernetes_validate.validate(document, NEWEST, strict=True)
        assert not re.search(r"\de\+\d", template(str(file), *more).stdout)
    (vllm,) = pods(documents)["qguide-vllm"]["spec"]["containers"]
    assert {f"--max-model-len={many}", f"--tensor-parallel-size={many}"} <= set(vllm["args"])
    assert vllm["startupProbe"]["failureThreshold"] == many
    command = server_of(documents)["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["sleep", str(many)]


def default(value: str) -> str:
    """The value that Compose takes where the operator gives no variable."""
    return re.sub(r"\$\{\w+:-(.*)\}", r"\1", value)


def test_images_may_be_pinned_to_a_digest() -> None:
    digest = f"@sha256:{'0' * 64}"
    given = [f"redis.image=redis:8-alpine{digest}", f"vllm.image=vllm/vllm-openai:v0.32.0{digest}"]
    values = (*CASES["insecure"], "redis.enabled=true", f"image.tag=cpu{digest}", *given)
    documents = rendered(*values)
    assert server_of(documents)["image"] == f"qguide:cpu{digest}"
    for name in ("qguide-redis", "qguide-vllm"):
        (container,) = pods(documents)[name]["spec"]["containers"]
        assert container["image"].endswith(digest)


def test_redis_and_vllm_are_those_of_the_compose_file() -> None:
    documents = rendered(*CASES["insecure"], "redis.enabled=true")
    (redis,) = pods(documents)["qguide-redis"]["spec"]["containers"]
    assert (redis["image"], redis["args"]) == (default(COMPOSE["redis"]["image"]), COMPOSE["redis"]["command"])
    context = pods(documents)["qguide-redis"]["spec"]["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == COMPOSE["redis"]["user"]
    (vllm,) = pods(documents)["qguide-vllm"]["spec"]["containers"]
    assert vllm["image"] == default(COMPOSE["vllm"]["image"])
    plain = [default(argument) for argument in COMPOSE["vllm"]["command"]]
    shared = "--gpu-memory-utilization=0.80"  # compose's one GPU scores, too
    assert vllm["args"] == ["--gpu-memory-utilization=0.9" if argument == shared else argument for argument in plain]
    probe = vllm["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 30 * 60
    upstream = json.loads(environment(server_of(documents))["QGUIDE_UPSTREAMS"])["vllm"]
    assert upstream["url"] == f"http://{one(documents, 'Service', 'qguide-vllm')['metadata']['name']}:8000/v1"
    assert f"--served-model-name={upstream['model']}" in vllm["args"]


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_whatever_is_named_is_there(values: tuple[str, ...]) -> None:
    """Selectors find one kind of pods, ports and volumes have the names that are used."""
    documents = rendered(*values)
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(documents).items()}

    def selected(selector: Document) -> str:
        (name,) = (name for name, have in labels.items() if selector.items() <= have.items())
        return name

    for document in documents:
        name, spec = document["metadata"]["name"], document.get("spec", {})
        if document["kind"] == "Service":
            target = selected(spec["selector"])
            ports = [port["name"] for port in pods(documents)[target]["spec"]["containers"][0]["ports"]]
            assert (target, [port["targetPort"] for port in spec["ports"]]) == (name, ports)
        elif document["kind"] in ("PodDisruptionBudget", "NetworkPolicy"):
            assert selected(spec.get("selector", spec.get("podSelector"))["matchLabels"]) == name
        elif document["kind"] == "HorizontalPodAutoscaler":
            assert "replicas" not in one(documents, "Deployment", spec["scaleTargetRef"]["name"])["spec"]
    made = {d["metadata"]["name"] for d in documents if d["kind"] == "PersistentVolumeClaim"}
    for pod in pods(documents).values():
        volumes = {v["name"]: v for v in pod["spec"].get("volumes", ())}
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            for mount in container["volumeMounts"]:
                assert mount["name"] in volumes or labels["qguide-redis"] == pod["metadata"]["labels"]
        claims = {v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v}
        assert claims <= {*made, "checkpoints"}


def test_redis_and_vllm_are_for_the_server_alone() -> None:
    documents = rendered("everything.yaml", "metrics.vllmMonitor.enabled=false")
    for name, port in (("qguide-redis", "redis"), ("qguide-vllm", "vllm")):
        (rule,) = one(documents, "NetworkPolicy", name)["spec"]["ingress"]
        (peer,) = rule["from"]
        assert peer["podSelector"] == one(documents, "Deployment")["spec"]["selector"]
        assert [one["port"] for one in rule["ports"]] == [port]


def test_only_a_new_process_brings_life_back_and_readiness_may_come_and_go() -> None:
    server = server_of(rendered(KEYS))
    assert server["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert server["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert server["readinessProbe"]["httpGet"]["path"] == "/readyz"
