"""Clients of others, unmodified, against a server in front of a fake upstream.

They want other versions of what our environment has, or are programs of Node; `make test-clients`
installs them apart. CLIENTS_PYTHON names a Python with tests/clients/requirements.txt, and
CLIENTS_NODE a folder with the packages of tests/clients/package.json. aider,
mini-swe-agent and LlamaIndex pin packages that the others want otherwise: CLIENTS_AIDER and CLIENTS_MINI
name programs, CLIENTS_LLAMA a Python.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from qguide.server.app import create_app
from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.support.alfworld_upstream import AlfWorldUpstream
from tests.support.serving import serving_app

PYTHON = os.environ.get("CLIENTS_PYTHON", "")
NODE = os.environ.get("CLIENTS_NODE", "")
AIDER = os.environ.get("CLIENTS_AIDER", "")
MINI = os.environ.get("CLIENTS_MINI", "")
LLAMA = os.environ.get("CLIENTS_LLAMA", "")
STEP_S = 300
BEST = DEFAULT_REPLIES[2]

needs_python = pytest.mark.skipif(not PYTHON, reason="CLIENTS_PYTHON names no Python")
needs_node = pytest.mark.skipif(not NODE, reason="CLIENTS_NODE names no folder")
needs_aider = pytest.mark.skipif(not AIDER, reason="CLIENTS_AIDER names no program")
needs_llama = pytest.mark.skipif(not LLAMA, reason="CLIENTS_LLAMA names no Python")
needs_mini = pytest.mark.skipif(not MINI, reason="CLIENTS_MINI names no program")


def client(name: str, package: str, api: str, does: str) -> pytest.MarkDecorator:
    """Mark a test as a row of the table of clients (`results/clients.json`).

    Args:
        package: whose pinned version is told.
        api: that it speaks.
        does: what the test has it do.
    """
    return pytest.mark.client(client=name, package=package, api=api, does=does)


@contextmanager
def serving(fake: FakeUpstream | AlfWorldUpstream, **changes: object) -> Iterator[str]:
    """Address of a server whose upstream is this fake."""
    with serving_app(fake.app()) as behind:
        demo = Upstream.model_validate({"url": f"{behind}/v1", "model": "fake", "retries": 0})
        values = {"policy": "demo", "upstreams": {"demo": demo}, "q_models": {"q": SCRIPTED}}
        values["unknown_models"] = "error"
        settings = Settings.model_validate(values | changes)
        with serving_app(create_app(settings)) as url:
            yield url


def lines_of(*command: str, cwd: str | None = None, env: Mapping[str, str] | None = None) -> list[Any]:
    """The lines that a program prints, each of them JSON."""
    return [json.loads(line) for line in output_of(*command, cwd=cwd, env=env).splitlines()]


def output_of(*command: str, cwd: str | None = None, env: Mapping[str, str] | None = None) -> str:
    """The output of a program, which must succeed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | dict(env or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=STEP_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
