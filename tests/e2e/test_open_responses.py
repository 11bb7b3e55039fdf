"""The compliance suite of Open Responses, from the caller's own checkout, against real servers.

    make test-open-responses OPEN_RESPONSES=../openresponses

QGUIDE_OPEN_RESPONSES names the checkout. Its packages are installed and `bun` is on PATH, because
the suite is a program for Bun.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from qguide.server.app import create_app
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.settings.settings import Settings
from tests.support.foreign_clients import serving
from tests.support.serving import serving_app

CHECKOUT = os.environ.get("QGUIDE_OPEN_RESPONSES", "")
SUITE = "bin/compliance-test.ts"
SUITE_S = 300
TEXT = {"basic-response", "streaming-response", "system-prompt", "multi-turn"}
OF_UPSTREAMS = {"tool-calling", "image-input"}
WEBSOCKET = "websocket-"

pytestmark = pytest.mark.skipif(
    not CHECKOUT, reason="QGUIDE_OPEN_RESPONSES names no checkout of Open Responses (make test-open-responses)"
)


def errors_over_http(url: str, model: str) -> dict[str, str]:
    """Errors of each case that speaks HTTP, by its id; empty where it passes."""
    bun = shutil.which("bun")
    assert bun, "no bun on PATH; the suite is a program for Bun, so install it"
    for needed in (SUITE, "node_modules/zod"):
        assert Path(CHECKOUT, needed).exists(), (
            f"{CHECKOUT} has no {needed}; name a checkout of Open Responses with its packages"
        )
    options = {"--base-url": f"{url}/v1", "--api-key": "any", "--model": model}
    command = [bun, "run", SUITE, *(word for option in options.items() for word in option)]
    done = subprocess.run(
        [*command, "--json"],
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SUITE_S,
        check=False,
    )
    assert done.stdout, done.stderr
    cases: list[dict[str, Any]] = json.loads(done.stdout)["results"]
    return {
        case["id"]: "" if case["status"] == "passed" else "; ".join(case["errors"])
        for case in cases
        if not case["id"].startswith(WEBSOCKET)
    }


def test_answers_of_an_upstream_comply() -> None:
    with serving(FakeUpstream()) as url:
        errors = errors_over_http(url, "demo")
    assert errors.keys() >= TEXT | OF_UPSTREAMS
    assert not {case: said for case, said in errors.items() if said}


def test_texts_of_the_embedded_models_comply_and_the_rest_is_explained() -> None:
    with serving_app(create_app(Settings())) as url:
        errors = errors_over_http(url, "embedded")
    assert {case for case, said in errors.items() if not said} >= TEXT
    assert "does not support 'tools'" in errors["tool-calling"]
    assert "read only text" in errors["image-input"]
