"""The compose file: whole, safe by default, and in keeping with the server's settings.

No engine runs here, so what one would refuse at start is checked on the parsed file.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.settings.settings import Settings

DOCKER = Path(__file__).parents[3] / "docker"
TEXT = (DOCKER / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SERVERS = ("server", "server-gpu")
PUBLISHED = {*SERVERS, "grafana"}
VARIABLE = re.compile(r"\$\{(\w+)")
SECRET = re.compile("PASSWORD|TOKEN$|SECRET|API_KEY")


def active(profile: str) -> set[str]:
    """Names of the services that start with a profile."""
    return {
        name for name, service in SERVICES.items() if profile in service.get("profiles", [profile])
    }


def test_the_cpu_profile_needs_no_gpu_and_no_vllm() -> None:
    assert active("cpu") == {"server", "redis", "prometheus", "grafana"}
    assert not [name for name in active("cpu") if "deploy" in SERVICES[name]]
    assert SERVICES["server"]["build"]["args"] == {"TORCH": "cpu"}


def test_the_gpu_profile_draws_with_vllm_and_scores_on_the_gpu() -> None:
    assert active("gpu") == {"server-gpu", "vllm", "redis", "prometheus", "grafana"}
    environment = SERVICES["server-gpu"]["environment"]
    upstream = json.loads(environment["QGUIDE_UPSTREAMS"])[environment["QGUIDE_POLICY"]]
    assert upstream["url"] == "http://vllm:8000/v1"
    assert f"--served-model-name={upstream['model']}" in SERVICES["vllm"]["command"]
    assert environment["QGUIDE_DEVICE"] == "cuda"
    for name in ("server-gpu", "vllm"):
        (device,) = SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device["capabilities"] == ["gpu"]


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_whatever_is_waited_for_starts_too_and_says_that_it_is_healthy(profile: str) -> None:
    for name in active(profile):
        waits_for = SERVICES[name].get("depends_on", {})
        assert set(waits_for) <= active(profile), name
        assert all("healthcheck" in SERVICES[other] for other in waits_for), name


def test_every_service_has_a_health_check() -> None:
    image = (DOCKER / "Dockerfile").read_text()
    assert "\nHEALTHCHECK " in image
    ours = {name for name in SERVICES if "build" in SERVICES[name]}
    assert ours == set(SERVERS)
    assert [
        name for name in SERVICES if name not in ours and "healthcheck" not in SERVICES[name]
    ] == []


def test_only_the_server_and_grafana_can_be_reached_and_by_default_from_here_alone() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == PUBLISHED
    for ports in published.values():
        assert all(port.startswith("${BIND:-127.0.0.1}:") for port in ports)


def test_our_processes_can_gain_no_rights_and_write_only_where_they_must() -> None:
    for name in set(SERVICES) - {"vllm"}:  # its image runs as root and compiles for itself
        service = SERVICES[name]
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True, name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_no_secret_stands_in_the_file_and_the_password_has_no_default() -> None:
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if SECRET.search(name):
                assert value is None or value.startswith("${"), name
    password = SERVICES["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"]
    assert password.startswith("${GRAFANA_PASSWORD:?")
    assert re.search(r"^GRAFANA_PASSWORD=$", (DOCKER / ".env.example").read_text(), re.MULTILINE)


def test_the_example_names_every_variable_that_is_read_and_no_other() -> None:
    passed_on = {
        name
        for service in SERVICES.values()
        for name, value in service.get("environment", {}).items()
        if value is None
    }
    example = (DOCKER / ".env.example").read_text()
    named = set(re.findall(r"^#?([A-Z_]+)=", example, re.MULTILINE))
    assert named == {*VARIABLE.findall(TEXT), *passed_on, "COMPOSE_PROFILES"}


def test_every_image_has_a_version() -> None:
    for service in SERVICES.values():
        _, _, version = service["image"].partition(":")
        assert version not in ("", "latest")


def test_every_mounted_file_is_there() -> None:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            if volume.startswith(("${MODELS:-./models}:", "${HOOKS:-./hooks}:")):
                continue  # a folder of the operator's
            source = volume.partition(":")[0]
            if source.startswith("./"):
                assert (DOCKER / source).exists(), f"{name} mounts {source}"
            else:
                assert source in COMPOSE["volumes"], f"{name} mounts {source}"


def test_every_setting_of_the_server_exists() -> None:
    for name in SERVERS:
        given = {key for key in SERVICES[name]["environment"] if key.startswith("QGUIDE_")}
        assert {key.removeprefix("QGUIDE_").lower() for key in given} <= set(Settings.model_fields)


def test_a_hosted_model_can_draw_from_the_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server reads every setting in .env.example once it is uncommented."""
    example = re.findall(r"^#?(QGUIDE_\w+)=(.*)$", (DOCKER / ".env.example").read_text(), re.M)
    passed_on = SERVICES["server"]["environment"]
    for name, value in example:
        assert name in passed_on
        monkeypatch.setenv(name, value.strip("'"))
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
    for name in SERVERS:
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > drain_s
