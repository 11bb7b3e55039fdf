"""A run ends with the weights of its best epoch."""

from pathlib import Path

import pytest
import torch
from torch import nn

from qguide.training.optimization.options import Criterion
from qguide.training.optimization.weight_average import BestWeights


def offer(best: BestWeights, model: nn.Linear, weight: float, **figures: float) -> None:
    nn.init.constant_(model.weight, weight)
    if best.is_beaten_by(figures):
        best.save(model.state_dict(), figures)


@pytest.mark.parametrize(("criterion", "kept"), [("spearman", 2.0), ("regret_steps", 3.0), ("last", 4.0)])
def test_the_best_by_the_criterion_is_restored(tmp_path: Path, criterion: Criterion, kept: float) -> None:
    model = nn.Linear(2, 1)
    offer(BestWeights(tmp_path, criterion), model, 1.0, spearman=0.1, regret_steps=0.9)
    best = BestWeights(tmp_path, criterion)  # as after a kill
    offer(best, model, 2.0, spearman=0.5, regret_steps=0.8)
    offer(best, model, 3.0, spearman=0.4, regret_steps=0.5)
    offer(best, model, 4.0, spearman=0.4, regret_steps=0.7)
    weights = best.load()
    assert (weights is None) == (criterion == "last")
    model.load_state_dict(weights or model.state_dict())
    assert torch.equal(model.weight, torch.full((1, 2), kept))
    if criterion == "spearman":
        assert best.figures == {"spearman": 0.5, "regret_steps": 0.8}


def test_a_kill_while_figures_are_written_leaves_those_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best, model = BestWeights(tmp_path, "spearman"), nn.Linear(2, 1)
    offer(best, model, 1.0, spearman=0.5)
    write_text = Path.write_text

    def write_half(path: Path, text: str) -> int:
        write_text(path, text[: len(text) // 2])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", write_half)
        with pytest.raises(KeyboardInterrupt):
            offer(best, model, 2.0, spearman=0.6)
    restarted = BestWeights(tmp_path, "spearman")
    assert restarted.figures == {"spearman": 0.5}
    offer(restarted, model, 2.0, spearman=0.6)
    assert restarted.figures == {"spearman": 0.6}


def test_without_held_back_groups_the_last_epoch_stays(tmp_path: Path) -> None:
    best, model = BestWeights(tmp_path, "spearman"), nn.Linear(2, 1)
    offer(best, model, 1.0, sibling_accuracy=0.7)
    assert best.load() is None
