"""The compose files: whole, safe by default, and in keeping with the server's settings.

Where no engine runs, what one would refuse at start is checked on the parsed files.
"""

import json
import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from qguide.server.settings.settings import Settings
from qguide.training.jobs.explore import ExploreConfig
from qguide.training.rollouts.hosted import find_upstream

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "docker"
TEXT = (DOCKER / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SERVERS = ("server-judge", "server", "server-gpu")
PUBLISHED = {*SERVERS, "grafana"}
CLUSTER_TEXT = (DOCKER / "cluster" / "compose.yaml").read_text()
CLUSTER: dict[str, Any] = yaml.safe_load(CLUSTER_TEXT)
BOTH = pytest.mark.parametrize(
    ("folder", "compose"), [(DOCKER, COMPOSE), (DOCKER / "cluster", CLUSTER)], ids=["one", "cluster"]
)
REPLICAS = [name for name in CLUSTER["services"] if name.startswith("replica-")]
OPERATORS = re.compile(r"\$\{\w+:-(\./\w+|/dev/null)\}")
"""A folder or a file of the operator's, which need not be there."""
PYTHON = "${PYTHON_IMAGE:-python:3.11-slim}"
VARIABLE = re.compile(r"\$\{(\w+)")
SECRET = re.compile("PASSWORD|TOKEN$|SECRET|API_KEY")


def active(profile: str) -> set[str]:
    """Names of the services that start with a profile."""
    return {name for name, service in SERVICES.items() if profile in service.get("profiles", [profile])}


def test_the_cpu_profile_needs_no_gpu_and_no_vllm() -> None:
    assert active("cpu") == {"server", "redis", "prometheus", "grafana"}
    assert not [name for name in active("cpu") if "deploy" in SERVICES[name]]
    assert SERVICES["server"]["build"]["args"] == {"TORCH": "cpu", "PYTHON": PYTHON}


def test_the_judge_profile_has_no_torch_and_the_example_starts_it() -> None:
    assert active("judge") == {"server-judge", "redis", "prometheus", "grafana"}
    args = {"EXTRAS": "${EXTRAS:-otel}", "PYTHON": PYTHON}
    assert SERVICES["server-judge"]["build"]["args"] == args
    lines = re.findall(r"^(\w+)='?(.*?)'?$", (DOCKER / ".env.example").read_text(), re.MULTILINE)
    example = dict(lines)
    assert example["COMPOSE_PROFILES"] == "judge"
    settings = Settings(
        policy=example["QGUIDE_POLICY"],
        upstreams=json.loads(example["QGUIDE_UPSTREAMS"]),
        q_models=json.loads(example["QGUIDE_Q_MODELS"]),
    )
    assert settings.served_q_models == {"judge": "judge:gpt"}


def test_the_gpu_profile_draws_with_vllm_and_scores_on_the_gpu() -> None:
    assert active("gpu") == {"server-gpu", "vllm", "redis", "prometheus", "grafana"}
    environment = SERVICES["server-gpu"]["environment"]
    upstream = json.loads(environment["QGUIDE_UPSTREAMS"])[environment["QGUIDE_POLICY"]]
    assert upstream["url"] == "http://vllm:8000/v1"
    assert f"--served-model-name={upstream['model']}" in SERVICES["vllm"]["command"]
    assert environment["QGUIDE_DEVICE"] == "cuda"
    served = Settings(policy=environment["QGUIDE_POLICY"], upstreams={"vllm": upstream})
    assert served.served_q_models == {"none": "none"}, "the embedded Q model knows one text game"
    for name in ("server-gpu", "vllm"):
        (device,) = SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device["capabilities"] == ["gpu"]


@pytest.mark.parametrize("profile", ["judge", "cpu", "gpu"])
def test_whatever_is_waited_for_starts_too_and_says_that_it_is_healthy(profile: str) -> None:
    for name in active(profile):
        waits_for = SERVICES[name].get("depends_on", {})
        assert set(waits_for) <= active(profile), name
        assert all("healthcheck" in SERVICES[other] for other in waits_for), name


@BOTH
def test_every_service_has_a_health_check(folder: Path, compose: Mapping[str, Any]) -> None:
    image = (DOCKER / "Dockerfile").read_text()
    assert "\nHEALTHCHECK " in image
    without = {name for name, each in compose["services"].items() if "healthcheck" not in each}
    assert without == (set(SERVERS) if folder == DOCKER else {"server"})
    assert all(compose["services"][name]["image"].startswith("qguide:") for name in without)


def test_only_the_server_and_grafana_can_be_reached_and_by_default_from_here_alone() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == PUBLISHED
    published |= {name: each["ports"] for name, each in CLUSTER["services"].items() if "ports" in each}
    assert set(published) == PUBLISHED
    for ports in published.values():
        assert all(port.startswith("${BIND:-127.0.0.1}:") for port in ports)


@BOTH
def test_our_processes_can_gain_no_rights_and_write_only_where_they_must(
    folder: Path, compose: Mapping[str, Any]
) -> None:
    for name, service in compose["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        compiles = "vllm/" in service["image"]
        assert compiles or service["read_only"] is True, name
        assert service["security_opt"] == ["no-new-privileges:true"], name


@BOTH
def test_no_secret_stands_in_a_file(folder: Path, compose: Mapping[str, Any]) -> None:
    for service in compose["services"].values():
        for name, value in service.get("environment", {}).items():
            if SECRET.search(name):
                assert not value or value.startswith("${"), name


def test_the_password_has_no_default() -> None:
    password = SERVICES["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"]
    assert password.startswith("${GRAFANA_PASSWORD:?")
    assert re.search(r"^GRAFANA_PASSWORD=$", (DOCKER / ".env.example").read_text(), re.MULTILINE)


def test_the_example_names_every_variable_that_is_read_and_no_other() -> None:
    passed_on = {
        name for service in SERVICES.values() for name, value in service.get("environment", {}).items() if value is None
    }
    example = (DOCKER / ".env.example").read_text()
    named = set(re.findall(r"^#?([A-Z_]+)=", example, re.MULTILINE))
    assert named == {*VARIABLE.findall(TEXT), *passed_on, "COMPOSE_PROFILES"}


def test_every_image_has_a_version_which_is_the_same_in_both_files() -> None:
    versions: dict[str, set[str]] = defaultdict(set)
    for service in (*SERVICES.values(), *CLUSTER["services"].values()):
        own = re.fullmatch(r"\$\{[A-Z]+_IMAGE:-(.+)\}", service["image"])
        name, _, version = (own[1] if own else service["image"]).partition(":")
        assert own or name == "qguide", "an operator may give a digest"
        versions[name].add(version)
    assert versions.pop("qguide") == {"lean", "cpu", "cuda", "cluster"}
    assert all(len(each) == 1 for each in versions.values())
    assert not {"", "latest"} & set().union(*versions.values())


@BOTH
def test_every_mounted_file_is_there(folder: Path, compose: Mapping[str, Any]) -> None:
    for name, service in compose["services"].items():
        for volume in service.get("volumes", ()):
            if OPERATORS.match(volume):
                continue
            source = volume.partition(":")[0]
            if source.startswith("./"):
                assert (folder / source).exists(), f"{name} mounts {source}"
            else:
                assert source in compose["volumes"], f"{name} mounts {source}"


def test_every_setting_of_the_server_exists() -> None:
    for service in (*(SERVICES[name] for name in SERVERS), CLUSTER["services"]["server"]):
        given = {key for key in service["environment"] if key.startswith("QGUIDE_")}
        assert {key.removeprefix("QGUIDE_").lower() for key in given} <= set(Settings.model_fields)


def test_every_setting_in_the_file_of_variables_reaches_the_server() -> None:
    for server in (*(SERVICES[name] for name in SERVERS), CLUSTER["services"]["server"]):
        assert server["env_file"] == [{"path": ".env", "required": False}]
    assert "Compose 2.24" in (ROOT / "docs" / "operate" / "docker.md").read_text()


def test_the_server_gets_no_secret_of_another_service_and_keeps_its_address() -> None:
    secrets = {
        variable
        for name, service in SERVICES.items()
        if name not in SERVERS
        for variable in (*service.get("environment", {}), *VARIABLE.findall(str(service)))
        if SECRET.search(variable)
    }
    example = (DOCKER / ".env.example").read_text()
    written = {name for name in secrets if re.search(rf"^#?{name}=", example, re.MULTILINE)}
    assert written == {"GRAFANA_PASSWORD", "HF_TOKEN"}
    for name in SERVERS:
        environment = SERVICES[name]["environment"]
        assert all(environment[secret] == "" for secret in written)
        assert environment["QGUIDE_HOST"] == "0.0.0.0"
        assert SERVICES[name]["ports"][0].endswith(f":{environment['QGUIDE_PORT']}")
    environment = CLUSTER["services"]["server"]["environment"]
    assert environment["RAY_AUTH_TOKEN"] == environment["HF_TOKEN"] == ""
    assert environment["QGUIDE_HOST"] == "0.0.0.0"
    assert CLUSTER["services"]["server"]["ports"][0].endswith(f":{environment['QGUIDE_PORT']}")


def test_a_hosted_model_can_draw_from_the_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server reads every setting in .env.example once it is uncommented."""
    example = re.findall(r"^#?(QGUIDE_\w+)=(.*)$", (DOCKER / ".env.example").read_text(), re.M)
    passed_on = SERVICES["server"]["environment"]
    for name, value in example:
        assert name in passed_on
        monkeypatch.setenv(name, value.strip("'"))
    monkeypatch.setenv("QGUIDE_KEYS_FILE", passed_on["QGUIDE_KEYS_FILE"])
    settings = Settings()
    upstream = settings.upstreams[settings.policy]
    assert upstream.url.host == "api.openai.com"
    assert settings.paraphraser in settings.upstreams
    assert settings.q_models["shop"].startswith("/models/")


def test_the_redaction_is_found_in_a_folder_of_its_own() -> None:
    for name in SERVERS:
        path = SERVICES[name]["environment"]["PYTHONPATH"]
        assert f"${{HOOKS:-./hooks}}:{path}:ro" in SERVICES[name]["volumes"]
        assert path != SERVICES[name]["environment"]["QGUIDE_MODELS_DIR"]


def test_the_end_of_the_server_is_waited_for() -> None:
    fields = Settings.model_fields
    drain_s = fields["drain_delay_s"].default + fields["shutdown_timeout_s"].default
    for service in (*(SERVICES[name] for name in SERVERS), CLUSTER["services"]["server"]):
        assert int(service["stop_grace_period"].removesuffix("s")) > drain_s


def test_the_cluster_s_services_wait_for_those_that_say_that_they_are_healthy() -> None:
    services = CLUSTER["services"]
    waiting = {name: set(each["depends_on"]) for name, each in services.items() if "depends_on" in each}
    assert waiting == {"worker": {"head"}, "router": set(REPLICAS), "server": {"redis", "router"}}
    for others in waiting.values():
        assert all("healthcheck" in services[other] for other in others)


def test_the_router_s_replicas_are_the_cluster_s_each_with_a_gpu_and_an_address_of_its_own() -> None:
    router = (DOCKER / "cluster" / "router.conf").read_text()
    assert re.findall(r"^ *server (replica-\d):8000 ", router, re.MULTILINE) == REPLICAS
    services = CLUSTER["services"]
    reserved = [services[name]["deploy"]["resources"]["reservations"] for name in REPLICAS]
    ids = [device["device_ids"] for each in reserved for device in each["devices"]]
    assert ids == [[str(number)] for number in range(len(REPLICAS))]
    # nginx asks for a name's address once: with a new one a restarted replica would stay away.
    addresses = {services[name]["networks"]["default"]["ipv4_address"] for name in REPLICAS}
    assert len(addresses) == len(REPLICAS)
    [network] = CLUSTER["networks"]["default"]["ipam"]["config"]
    assert all(address in ip_network(network["subnet"]) for address in map(ip_address, addresses))
    assert "listen 8000;" in router
    mounted = services["router"]["volumes"][0].split(":")[1]
    assert mounted in services["router"]["entrypoint"]


def test_the_cluster_s_server_and_jobs_draw_through_the_router() -> None:
    environment = CLUSTER["services"]["server"]["environment"]
    upstream = json.loads(environment["QGUIDE_UPSTREAMS"])[environment["QGUIDE_POLICY"]]
    assert upstream["url"] == "http://router:8000/v1"
    for name in REPLICAS:
        command = CLUSTER["services"][name]["command"]
        assert f"--served-model-name={upstream['model']}" in command
        assert "--enable-prefix-caching" in command
    given = dict(re.findall(r"--set (\S+?)=(\S+)", CLUSTER_TEXT))
    workers = {k.removeprefix("workers."): v for k, v in given.items() if k.startswith("workers.")}
    job = ExploreConfig.model_validate(
        {"output": "runs", "policy": given["policy"], "parallel": given["parallel"], "workers": workers}
    )
    assert (job.workers.executor, job.workers.address) == ("ray", "auto")
    assert job.parallel > job.workers.count
    _, hosted = find_upstream(job.policy, {})
    assert (str(hosted.url), hosted.model) == (upstream["url"], upstream["model"])


def test_ray_s_machines_have_one_image_one_token_and_the_same_files() -> None:
    head, worker = (CLUSTER["services"][name] for name in ("head", "worker"))
    for name in ("image", "environment", "volumes"):
        assert head[name] == worker[name]
    assert head["environment"]["RAY_AUTH_MODE"] == "token"
    assert head["environment"]["RAY_AUTH_TOKEN"].startswith("${RAY_AUTH_TOKEN:?")
    [port] = [word for word in head["entrypoint"] if word.startswith("--port=")]
    assert f"--address=head:{port.removeprefix('--port=')}" in worker["entrypoint"]
    # An actor reserves a CPU, so that none of them starts beside the job.
    assert "--num-cpus=0" in head["entrypoint"]
    assert head["build"]["args"]["EXTRAS"] == "train,otel,ray"


def test_the_options_of_ray_exist() -> None:
    ray = shutil.which("ray")
    if ray is None:
        pytest.skip("the extra ray is not installed")
    done = subprocess.run([ray, "start", "--help"], capture_output=True, text=True, check=True)
    for name in ("head", "worker"):
        options = [word.split("=")[0] for word in CLUSTER["services"][name]["entrypoint"][2:]]
        assert all(option in done.stdout for option in options)


@pytest.mark.parametrize("profile", ["judge", "cpu", "gpu"])
def test_compose_itself_resolves_every_profile(profile: str) -> None:
    variables = {"GRAFANA_PASSWORD": "p", "COMPOSE_PROFILES": profile}
    resolved = resolve(DOCKER / "compose.yaml", **variables)
    assert set(resolved["services"]) == active(profile)
    assert resolved["services"]["redis"]["image"] == "redis:8-alpine"


def test_compose_itself_resolves_the_cluster_and_takes_a_digest() -> None:
    pinned = f"redis:8-alpine@sha256:{'0' * 64}"
    file = DOCKER / "cluster" / "compose.yaml"
    resolved = resolve(file, RAY_AUTH_TOKEN="0" * 64, REDIS_IMAGE=pinned)
    assert set(resolved["services"]) == set(CLUSTER["services"])
    assert resolved["services"]["redis"]["image"] == pinned


def resolve(file: Path, **variables: str) -> dict[str, Any]:
    """The file as Compose reads it; no engine has to run."""
    for compose in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(compose[0]) is None:
            continue
        told = subprocess.run([*compose, "version"], capture_output=True, text=True, check=False)
        if told.returncode == 0 and not re.search(r"version v?1\.", told.stdout):
            break
    else:
        pytest.skip("no Compose 2 or newer, as `docker compose` or `docker-compose`")
    command = [*compose, "--file", str(file), "config", "--format", "json"]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
