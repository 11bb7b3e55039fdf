"""A program that passes for a Python with vLLM: this one, with the scripted `vllm` in its path."""

import sys
from pathlib import Path

SCRIPTED = Path(__file__).with_name("scripted_vllm_python")

_PROGRAM = """#!{python}
import runpy
import sys

sys.path.insert(0, {scripted!r})
[isolated, *sys.argv] = sys.argv[1:]
assert isolated == "-I"
if sys.argv[0] == "-m":
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__")
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def vllm_python(folder: Path) -> Path:
    """Writes it into the folder."""
    path = folder / "vllm-python"
    path.write_text(_PROGRAM.format(python=sys.executable, scripted=str(SCRIPTED)))
    path.chmod(0o755)
    return path
