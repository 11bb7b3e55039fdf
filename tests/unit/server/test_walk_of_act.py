"""Modules and folders whose code runs while the server answers one /v1/act, with its own models.

Whoever follows a request has to open these files; `-s` prints them, and `docs/architecture/walk.md` names them.
"""

import json
import re
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import httpx

from qguide.server.app import create_app
from qguide.server.settings.settings import Settings
from tests.support.serving import serving_app

_ROOT: Final = Path(__file__).parents[3]
_PRODUCT: Final = ("qguide", "qnet", "server", "training")
_README: Final = (_ROOT / "README.md").read_text()
_ACT: Final = json.loads(_README.partition("/v1/act -H 'content-type: application/json' -d '")[2].partition("'\n")[0])
_PAGE: Final = (_ROOT / "docs" / "architecture" / "walk.md").read_text()
_ROWS: Final = re.findall(r"^\| `([\w/]+)` \| (`.*?`) \|", _PAGE, re.MULTILINE)
_TOLD: Final = {Path(folder) / f"{name}.py" for folder, names in _ROWS for name in re.findall(r"`(\w+)`", names)}


def test_one_act_walks_through_the_modules_that_the_page_names() -> None:
    called: set[CodeType] = set()
    recording = False

    def hook(frame: FrameType, event: str, _: Any) -> None:
        if recording and event == "call":
            called.add(frame.f_code)

    threading.setprofile(hook)  # of the threads that the server starts
    try:
        with serving_app(create_app(Settings())) as url, httpx.Client(base_url=url) as client:
            assert client.post("/v1/act", json=_ACT).is_success
            recording = True
            answer = client.post("/v1/act", json=_ACT)
            recording = False
    finally:
        threading.setprofile(None)
    assert answer.json()["guided"]
    modules = sorted(_modules(called))
    folders = Counter(str(module.parent) for module in modules)
    print(*modules, f"{len(modules)} modules, {len(folders)} folders", sep="\n")  # noqa: T201
    assert {*modules} == _TOLD


def test_the_page_counts_the_modules_that_it_names() -> None:
    assert f"these {len(_TOLD)} modules in {len(_ROWS)} folders" in _PAGE
    assert [module for module in _TOLD if not (_ROOT / module).exists()] == []


def _modules(called: set[CodeType]) -> set[Path]:
    """Files of the product that have these functions, but for generated code."""
    files = {Path(code.co_filename).resolve() for code in called}
    inside = {file.relative_to(_ROOT) for file in files if file.is_relative_to(_ROOT)}
    return {file for file in inside if file.parts[0] in _PRODUCT}
