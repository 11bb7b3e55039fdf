"""The documentation against the code: generated pages are fresh, and every command exists."""

import ast
import importlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from qguide.cli import app
from qguide.jobs.options import fields_of
from qguide.jobs.table import JOBS
from qguide.qnet.errors import ConfigError
from qguide.server.own_bodies import answers, schemas
from qguide.server.settings.settings import Settings
from qguide.training.configs.job_files import load_config
from tests.support.documents import Block, Command, blocks_of, commands_of, pages
from tests.support.serving import ROOT
from tools.reference_pages.build import build_files
from tools.reference_pages.metrics import metrics_page
from tools.reference_pages.summary import with_summary

MOST_README_LINES = 200
LANGUAGES = {"sh", "python", "json", "toml", "yaml", "ts", "sql", "text"}
FOLDERS = ("clients/", "docker/", "docs/", "tests/", "training/")
MADE_BY_THE_READER = {"docker/.env"}
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)[^)]*\)|!\[[^\]]*\]\(([^)\s]+)\)")
NAMED = re.compile(r"`((?:qnet|server|training|qguide|tests|tools|clients|docker|results)/[\w./-]*)`")
PLACEHOLDERS = ("NAME", "/lamps", "docker/.env")
BLOCKS = [block for page in pages() for block in blocks_of(page)]
INLINE = re.compile(r"`(qguide [^`\n]*training/configs/[^`\n]*)`")
COMMANDS_IN_TEXT = [
    Block(page, "sh", command)
    for page in pages()
    for command in INLINE.findall((ROOT / page).read_text(encoding="utf-8"))
]


def named(block: Block) -> str:
    """A test's name."""
    return f"{block.page}:{block.text.splitlines()[0][:40]}"


def test_generated_pages_are_fresh() -> None:
    stale = [path for path, text in build_files().items() if (ROOT / path).read_text(encoding="utf-8") != text]
    assert stale == [], "run `make docs-reference`"


def test_a_metric_is_explained_without_the_one_above_it() -> None:
    rows = [line for line in metrics_page().splitlines() if line.startswith("| `qguide_")]
    assert len(rows) > 20
    assert [row for row in rows if re.search(r"\b(such|these|those)\b", row)] == []


def test_a_summary_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"docs/results/index\.md .*<!-- summary: … -->"):
        with_summary("# QGuide", "<!-- summary: copied -->\n<!-- end of summary -->")


def test_the_readme_fits_its_limit() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MOST_README_LINES


@pytest.mark.parametrize("page", [*pages(), "llms.txt"])
def test_links_lead_to_files(page: str) -> None:
    folder = (ROOT / page).parent
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [one or other for one, other in LINK.findall(text)]
    missing = [to for to in targets if "://" not in to and not (folder / to).exists()]
    assert missing == []


@pytest.mark.parametrize("page", pages())
def test_named_files_exist(page: str) -> None:
    found = NAMED.findall((ROOT / page).read_text(encoding="utf-8"))
    named = [path for path in found if not any(word in path for word in PLACEHOLDERS)]
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_tests_of_the_faults_exist() -> None:
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs/operate/faults.md").read_text())
    there = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in named if f"def {name}(" not in there] == []


def test_the_folder_map_is_complete() -> None:
    told = (ROOT / "docs/architecture/index.md").read_text()
    folders = {
        path.parent.relative_to(ROOT).as_posix()
        for package in ("qnet", "server", "training")
        for path in (ROOT / package).glob("*/*.py")
    }
    missing = [name for name in folders if f"`{name}/`" not in told and f"`{name.partition('/')[2]}/`" not in told]
    assert missing == [], "add a row to docs/architecture/index.md"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "zensical.toml").read_text()
    generated = [str(path.relative_to(ROOT)) for path in (ROOT / "docs/reference").glob("*.md")]
    hand = [page for page in pages() if not page.startswith(("clients/", "skills/"))]
    assert [page for page in [*hand, *generated] if f'"{page}"' not in navigation] == []


def test_blocks_are_in_languages_that_the_tests_know() -> None:
    assert {block.language for block in BLOCKS} <= LANGUAGES


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "json"], ids=named)
def test_json_is_what_it_is_said_to_be(block: Block) -> None:
    match block.kind:
        case "schema":
            body = getattr(answers, block.said, None) or getattr(schemas, block.said)
            body.model_validate_json(block.text)
        case "row":
            records = importlib.import_module("qguide.training.data.records")
            getattr(records, block.said).model_validate_json(block.text)
        case "setting":
            Settings.model_validate({block.said: json.loads(block.text)})
        case _:
            json.loads(block.text)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "toml"], ids=named)
def test_a_job_file_is_one_of_its_job(block: Block, tmp_path: Path) -> None:
    assert block.kind == "job", "say before the block which job it is for: <!-- job: NAME -->"
    file = tmp_path / "job.toml"
    file.write_text(block.text)
    load_config(JOBS[block.said].config_type(), file, [f"output={tmp_path}"])


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=named)
def test_python_parses_and_imports_what_there_is(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(("qnet", "qguide")):
            module = importlib.import_module(str(node.module))
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "sh"] + COMMANDS_IN_TEXT, ids=named)
def test_commands_and_their_options_exist(block: Block, tmp_path: Path) -> None:
    commands = list(commands_of(block, tmp_path))
    assert commands
    for command in commands:
        for argument in command.arguments:
            if argument.startswith(FOLDERS) and argument not in MADE_BY_THE_READER:
                assert (ROOT / argument).exists(), argument
        match command.program:
            case "make":
                assert_targets(command)
            case "qguide":
                assert_qguide(command)
            case "accelerate":
                at = list(command.arguments).index("qguide")
                assert_qguide(replace(command, arguments=command.arguments[at + 1 :]))


def assert_targets(command: Command) -> None:
    """The Makefile has them."""
    rules = (ROOT / "Makefile").read_text()
    for target in command.arguments:
        assert re.search(rf"^{re.escape(target)}:", rules, re.MULTILINE), target


def assert_qguide(command: Command) -> None:
    """The command has these options, its job file these fields, the server these settings."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in command.variables.items():
            patch.setenv(variable, value)
        context = parse(typer.main.get_command(app), list(command.arguments))
        name, options = context.command.name, context.params
        if name in JOBS:
            path = options["config"]
            overrides = [*(options["overrides"] or ()), *([] if path else ["output=there"])]
            filled = fields_of(JOBS[name].options, options)
            kind = JOBS[name].config_type()
            load_config(kind, path and ROOT / path, overrides, options=filled)
        if name == "serve" and "policy" in options:
            given = {option: options[option] for option in ("host", "policy") if options[option]}
            Settings(**given)


def parse(command: Any, arguments: list[str], parent: Any = None) -> Any:
    """The context of the innermost command, whose options click has checked without running it.

    Typer brings a click of its own, so what a group is shows in what it can do.
    """
    if not hasattr(command, "get_command"):
        return command.make_context(command.name, arguments, parent=parent)
    context = command.context_class(command, parent=parent)
    inner = command.get_command(context, arguments[0])
    assert inner is not None, f"there is no command {arguments[0]!r}"
    return parse(inner, arguments[1:], context)


def test_a_wrong_option_is_seen(tmp_path: Path) -> None:
    text = "qguide label --config training/configs/alfworld/label.toml --set gama=0.9\n"
    (command,) = commands_of(Block("here", "sh", text), tmp_path)
    with pytest.raises(ConfigError, match="gama"):
        assert_qguide(command)
