"""`qguide plan`: what fits a GPU, from a configuration alone."""

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import PretrainedConfig, Qwen3_5TextConfig, Qwen3Config, Qwen3MoeConfig
from typer.testing import CliRunner, Result

from qguide.cli import app
from tests.support.architectures import tiny_config

SHAPE: dict[str, Any] = {
    "hidden_size": 2560,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 9728,
    "vocab_size": 151_936,
}
"""Qwen3-4B's."""


def planned(folder: Path, *options: str, config: PretrainedConfig | None = None) -> Result:
    (config or Qwen3Config(**SHAPE)).save_pretrained(folder)
    return CliRunner().invoke(app, ["plan", "--model", str(folder), *options])


def test_a_model_of_four_billion_on_one_gpu(tmp_path: Path) -> None:
    done = planned(tmp_path, "--gpu", "h200", "--history", "8192", "--sessions", "64")
    assert done.exit_code == 0, done.output
    assert "7.49 GiB   4,022,468,096 parameters" in done.stdout
    assert f"cache per token       {2 * 36 * 8 * 128 * 2 / 2**10} KiB" in done.stdout
    assert "72.00 GiB   fit; 98 is the most" in done.stdout
    assert "QGUIDE_CACHE_BYTES=77309411328" in done.stdout
    assert len(re.findall(r"trees of up to [\d,]+ tokens fit", done.stdout)) == 2


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    done = planned(tmp_path, "--gpu", "24", "--sessions", "64")
    assert "do not fit; 11 is the most" in done.stdout
    assert "no tree fits: use several GPUs" in done.stdout


def test_all_experts_are_trained_and_only_the_chosen_ones_have_activations(tmp_path: Path) -> None:
    taken = []
    for experts in (16, 32):
        config = Qwen3MoeConfig(num_hidden_layers=2, vocab_size=300, num_experts=experts, num_experts_per_tok=4)
        done = planned(tmp_path, config=config)
        [parameters] = re.findall(r"([\d,]+) parameters", done.stdout)
        [step] = re.findall(r"all weights +([\d.]+) GiB", done.stdout)
        taken.append((int(parameters.replace(",", "")), float(step)))
    (fewer, less), (more, most) = taken
    # A weight with its copy, gradient and moments takes 18 bytes.
    assert (most - less) * 2**30 == pytest.approx(18 * (more - fewer), abs=0.02 * 2**30)


def test_why_a_trunk_is_not_planned_is_said(tmp_path: Path) -> None:
    done = planned(tmp_path, config=tiny_config("dbrx"))
    assert done.exit_code == 0, done.output
    assert "no more is planned: its layers do not run without weights (" in done.stdout
    said = re.findall(r"(adapters of rank 16|all weights) +not planned: .* \((\w+: .*)\)", done.stdout)
    assert len(said) == 2, "each is tried"
    assert all("nonzero" in reason for _, reason in said)


def test_attention_that_names_its_mask_is_planned(tmp_path: Path) -> None:
    assert "not planned" not in planned(tmp_path, config=tiny_config("afmoe")).stdout


def test_a_hybrid_keeps_a_state_beside_keys_and_values(tmp_path: Path) -> None:
    heads, size = 16, 128
    layers = ["linear_attention", "full_attention"]
    config = Qwen3_5TextConfig(num_hidden_layers=2, layer_types=layers, vocab_size=300, linear_num_value_heads=heads)
    done = planned(tmp_path, "--history", "1024", "--candidates", "3", "--sessions", "10", config=config)
    assert done.exit_code == 0, done.output
    [state] = map(float, re.findall(r"a state +([\d.]+) MiB", done.stdout))
    recurrent = heads * size * size * 4 / 2**20
    assert recurrent < state < 1.1 * recurrent  # and windows of convolutions
    [kept] = map(int, re.findall(r"QGUIDE_CACHE_BYTES=(\d+)", done.stdout))
    attended = 1024 * 2 * config.num_key_value_heads * config.head_dim * 2
    assert kept / 10 == pytest.approx(attended + (1 + 3) * state * 2**20, rel=0.01)
    assert len(re.findall(r"trees of up to [\d,]+ tokens fit", done.stdout)) == 2


@pytest.mark.parametrize(("model", "gpu", "said"), [(".", "h300", "gigabytes"), ("nowhere/", "h100", "config.json")])
def test_a_wrong_name_is_refused(model: str, gpu: str, said: str) -> None:
    done = CliRunner().invoke(app, ["plan", "--model", model, "--gpu", gpu])
    assert done.exit_code in (1, 2)
    assert said in done.output
