"""Every environment that a page defines passes the check that the page names for it."""

import ast
from pathlib import Path

import pytest

from tests.support.alone import run_forked
from tests.support.documents import Block, blocks_of, commands_of, pages
from tests.support.serving import run_qguide

BLOCKS = [block for page in pages() for block in blocks_of(page)]


def environments_of(block: Block) -> list[str]:
    """Names of the bundles in a block of Python, or of its environments if there is none."""
    body = ast.parse(block.text).body
    bundles = [
        node.targets[0].id
        for node in body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "EnvironmentBundle"
    ]
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    starting = [
        node.name
        for node in classes
        if any(isinstance(each, ast.FunctionDef) and each.name == "reset" for each in node.body)
    ]
    return bundles or starting


DEFINED = [(block, name) for block in BLOCKS if block.language == "python" for name in environments_of(block)]


def test_the_pages_define_environments() -> None:
    assert {name for _, name in DEFINED} >= {"LAMPS", "Lamp", "Shop"}


@pytest.mark.parametrize(("block", "name"), DEFINED, ids=[name for _, name in DEFINED])
def test_an_environment_of_a_page_passes_the_check_of_the_page(block: Block, name: str, tmp_path: Path) -> None:
    shell = tmp_path / "shell"
    shell.mkdir()
    [arguments] = [
        command.arguments
        for other in BLOCKS
        if other.page == block.page and other.language == "sh" and f":{name}" in other.text
        for command in commands_of(other, shell)
        if command.program == "qguide" and command.arguments[2].endswith(f":{name}")
    ]
    module = tmp_path / f"{arguments[2].partition(':')[0].replace('.', '/')}.py"
    module.parent.mkdir()
    module.write_text(block.text)
    code, output = run_forked(run_qguide, arguments, cwd=tmp_path)
    assert code == 0, output
    assert "look" in block.text  # each is checked by an action that changes nothing
    assert "passed       episodes run side by side" in output
