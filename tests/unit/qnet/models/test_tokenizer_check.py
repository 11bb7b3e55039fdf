"""A hostile tokenizer or template of the hub ends a child process, and nothing else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.loading import load_renderer
from qguide.qnet.models.tokenizer_check import check_tokenizer
from qguide.training.jobs.sft import build_model
from qguide.training.policy_training.options import SftConfig
from tests.support.tiny_models import save_policy

pytestmark = pytest.mark.server
LIMITS = {"cpu_s": 30, "memory_bytes": 1024**3}
LOOP = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    "{% for m in messages %}{{ m['content'] }}{% endfor %}"
)

Model = Callable[..., Path]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """A model in a folder like the hub's cache, with another normaliser or chat template."""

    def save(*replaced: tuple[str, str], template: str = "") -> Path:
        folder = save_policy(tmp_path / "models--a--b" / "snapshots" / "0123")
        file = folder / "tokenizer.json"
        tokenizer: dict[str, Any] = json.loads(file.read_text())
        steps = [{"type": "Replace", "pattern": {"String": old}, "content": new} for old, new in replaced]
        if steps:
            tokenizer["normalizer"] = {"type": "Sequence", "normalizers": steps}
            file.write_text(json.dumps(tokenizer))
        if template:
            (folder / "chat_template.jinja").write_text(template)
        return folder

    return save


def test_an_honest_tokenizer_passes_and_loads(model: Model) -> None:
    folder = model()
    check_tokenizer(folder, **LIMITS)
    assert load_renderer(folder).tokenizer.eos_token


def test_a_normaliser_that_fills_the_memory_is_refused(model: Model) -> None:
    bomb = [("a", "a" * 100)] * 6
    with pytest.raises(CheckpointError, match=r"status -[0-9]|took .*30 s"):
        check_tokenizer(model(*bomb), **LIMITS)


def test_a_normaliser_that_makes_too_many_tokens_is_refused_at_loading(model: Model) -> None:
    with pytest.raises(CheckpointError, match=r"[0-9,]+ tokens .*[0-9,]+ bytes"):
        load_renderer(model(("a", "a" * 900_000)))


def test_a_template_that_never_ends_is_refused(model: Model) -> None:
    # On a busy machine the time that may pass, five times the CPU time, is over first.
    ended = r"status -9, .* 3 s|within 15 s"
    with pytest.raises(CheckpointError, match=ended):
        check_tokenizer(model(template=LOOP), cpu_s=3, memory_bytes=1024**3)


def test_a_template_of_very_long_turns_is_refused(model: Model) -> None:
    long = "{% for m in messages %}{{ m['content'] }}{{ 'a ' * 200000 }}{{ eos_token }}{% endfor %}"
    with pytest.raises(CheckpointError, match=r"400,010 .*100,000"):
        check_tokenizer(model(template=long), **LIMITS)


def test_the_base_of_a_policy_to_train_is_tried_too(model: Model, tmp_path: Path) -> None:
    config = SftConfig(trajectories=(tmp_path,), output=tmp_path, base=model(("a", "a" * 900_000)))
    with pytest.raises(CheckpointError, match=r"[0-9,]+ tokens .*[0-9,]+ bytes"):
        build_model(config, ())
