"""Architectures that vLLM serves, read from an installed vLLM into a committed file.

    QGUIDE_VLLM_PYTHON=PYTHON python -m tools.reference_pages.vllm_models

The page of supported models is generated from `vllm_models.json`, so that it needs no vLLM. vLLM's
registry is parsed and not imported, which would take torch and a minute.
"""

import ast
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypedDict

LISTED: Final = Path(__file__).with_name("vllm_models.json")
_TABLES: Final = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS")
"""Tables of the registry with causal models, whose keys are transformers' class names."""
_FIND: Final = "import importlib.util; print(importlib.util.find_spec('vllm').origin)"


class VllmModels(TypedDict):
    """The version of vLLM and the classes that it serves."""

    version: str
    classes: Sequence[str]


def listed_models() -> VllmModels:
    """The committed list."""
    found: VllmModels = json.loads(LISTED.read_text(encoding="utf-8"))
    return found


def read_models(package: Path) -> VllmModels:
    """Version and classes of the vLLM in a package folder.

    Raises:
        KeyError: this version keeps its models elsewhere.
    """
    registry = _assignments(package / "model_executor/models/registry.py")
    version = ast.literal_eval(_assignments(package / "_version.py")["__version__"])
    tables = [registry[name] for name in _TABLES]
    keys = {key for table in tables if isinstance(table, ast.Dict) for key in table.keys if key}
    return {"version": version, "classes": sorted(map(ast.literal_eval, keys))}


def _assignments(source: Path) -> dict[str, ast.expr]:
    """The expression that each name of a module is set to."""
    return {
        target.id: statement.value
        for statement in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


def main() -> None:
    """Write the list."""
    python = os.environ["QGUIDE_VLLM_PYTHON"]
    found = subprocess.run([python, "-c", _FIND], capture_output=True, text=True, check=True)
    models = read_models(Path(found.stdout.strip()).parent)
    LISTED.write_text(json.dumps(models, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
