"""The Helm chart's values become the server's settings, and the server answers with them."""

import json
import os
import runpy
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient

from qguide.server.app import create_app
from qguide.server.settings.settings import Settings
from tests.support.helm_chart import (
    CASES,
    CHART,
    CPUS,
    KEYS,
    POD,
    Documents,
    environment,
    helm,
    needs_helm,
    rendered,
    server_of,
)
from tests.support.serving import ROOT

pytestmark = needs_helm


def settings_of(documents: Documents, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings as the server would read them."""
    for name in os.environ:
        if name.startswith("QGUIDE_"):
            monkeypatch.delenv(name)
    for name, value in environment(server_of(documents)).items():
        monkeypatch.setenv(name, value)
    return Settings()


def test_the_schema_of_the_settings_is_the_servers() -> None:
    script = runpy.run_path(str(ROOT / "docker/helm/settings_schema.py"))
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert script["with_settings"](schema) == schema, "the settings changed: `make helm-schema`"
    assert set(schema["definitions"]["settings"]["properties"]) == set(Settings.model_fields)


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_the_server_takes_what_the_pod_gives_it(values: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    documents = rendered(*values)
    given = {name for name in environment(server_of(documents)) if name.startswith("QGUIDE_")}
    assert {name.removeprefix("QGUIDE_").lower() for name in given} <= set(Settings.model_fields)
    settings = settings_of(documents, monkeypatch)
    assert (settings.host, settings.port, settings.replica) == ("0.0.0.0", 8000, POD)
    assert bool(settings.keys_file) is not settings.insecure


def test_settings_arrive_as_they_were_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(rendered("everything.yaml"), monkeypatch)
    assert settings.aliases == {"trial": {"shop@v1": 0.9, "shop@v2": 0.1}, "rerank-v3.5": "shop"}
    assert settings.upstreams["own"].n == "parallel"
    assert settings.upstreams["gpt"].api_key is not None
    assert settings.upstreams["gpt"].api_key.get_secret_value() == "sk-of-a-test"
    trunk_key = settings.vllm_trunks["big"].api_key
    assert trunk_key is not None
    assert trunk_key.get_secret_value() == "trunk-of-a-test"
    reward_key = settings.classifiers["reward"].api_key
    assert reward_key is not None
    assert reward_key.get_secret_value() == "reward-of-a-test"
    assert (settings.device, settings.dtype, settings.policy) == ("cuda", "bfloat16", "vllm")
    assert str(settings.models_dir) == "/models"
    assert settings.cors_origins == ("https://agents.example.com",)
    assert settings_of(rendered("gpu-vllm.yaml"), monkeypatch).cache_bytes == 8 * 1024**3


def test_without_keys_a_server_answers_to_its_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    host = "ingress.hosts[0]"
    ingress = ("ingress.enabled=true", f"{host}.host=qguide.example", f"{host}.paths[0].path=/")
    more = (f"{host}.paths[0].pathType=Prefix", "insecure=true")
    hosts = settings_of(rendered(*ingress, *more), monkeypatch).trusted_hosts
    assert hosts[:2] == ("qguide", "qguide.default")
    assert hosts[-2:] == ("qguide.default.svc.cluster.local", "qguide.example")
    assert settings_of(rendered(KEYS), monkeypatch).trusted_hosts == ()
    named = settings_of(rendered("insecure=true", "settings.trusted_hosts={a}"), monkeypatch)
    assert named.trusted_hosts == ("a",)


def test_no_text_is_taken_for_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a$(QGUIDE_HOST)$$1 \"b\\'"
    given = ("--set-json", f"settings.paraphraser={json.dumps(text)}")
    done = helm("template", "qguide", str(CHART), *given, "--set", f"{KEYS},{CPUS}=1500m")
    documents = tuple(document for document in yaml.safe_load_all(done.stdout) if document)
    settings = settings_of(documents, monkeypatch)
    assert settings.paraphraser == text
    assert settings.threads == 2  # the CPUs asked for, rounded up


def test_the_notes_command_and_the_probes_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the server that the rendered environment makes, with fakes for models."""
    chart = shutil.copytree(CHART, tmp_path / "chart")
    notes = (chart / "templates/NOTES.txt").read_text()
    (chart / "templates/_notes.tpl").write_text('{{- define "notes" -}}' + notes + "{{- end -}}")
    (chart / "templates/notes.yaml").write_text('notes: {{ include "notes" . | toJson }}')
    fakes = ("insecure=true", "settings.policy=scripted", "settings.q_models.fake=scripted")
    (told,) = (document["notes"] for document in rendered(*fakes, chart=chart) if "notes" in document)
    settings = settings_of(rendered(*fakes), monkeypatch)
    server = server_of(rendered(*fakes))
    with TestClient(create_app(settings), "http://localhost") as client:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert client.get(server[probe]["httpGet"]["path"]).status_code == 200
        words = shlex.split(told[told.index("curl") :])
        url, body = words[2], words[words.index("-d") + 1]
        answer = client.post(url.removeprefix("http://127.0.0.1:8000"), json=json.loads(body))
        assert answer.status_code == 200
        assert answer.headers["x-qguide-replica"] == POD
