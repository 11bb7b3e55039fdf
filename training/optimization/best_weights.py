"""Weights of the epoch with the best choices among held-back candidates.

A success rate is a poor criterion, because the difference between two nets on a hundred games is
mostly luck. Rank correlation and regret are measured on thousands of held-back decisions.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor

Criterion = Literal["last", "spearman", "regret_steps"]

WEIGHTS: Final = "best_weights.pt"
FIGURES: Final = "best_figures.json"


class BestWeights:
    """The best epoch so far, saved in the run folder so that a resumed run knows it.

    Args:
        folder: the run folder.
        criterion: the figure by which epochs are compared; "last" saves nothing.
    """

    def __init__(self, folder: Path, criterion: Criterion) -> None:
        self._weights, self._figures = folder / WEIGHTS, folder / FIGURES
        self._criterion = criterion

    def is_beaten_by(self, figures: Mapping[str, float]) -> bool:
        """True if an epoch with these figures is to be saved: no earlier one was better."""
        if self._criterion == "last" or self._criterion not in figures:
            return False
        return not (self._figures.is_file() and self._is_better(self.figures, figures))

    def save(self, weights: Mapping[str, Tensor], figures: Mapping[str, float]) -> None:
        """Keep the weights of an epoch instead of those saved before."""
        unfinished = self._weights.with_suffix(".partial")
        torch.save(dict(weights), unfinished)
        unfinished.replace(self._weights)
        unfinished = self._figures.with_suffix(".partial")
        unfinished.write_text(json.dumps(figures))
        unfinished.replace(self._figures)

    def load(self) -> dict[str, Any] | None:
        """The saved weights; None if the last epoch's are to be kept."""
        if self._criterion == "last" or not self._figures.is_file():
            return None
        weights: dict[str, Any] = torch.load(self._weights, map_location="cpu", weights_only=True)
        return weights

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the saved weights."""
        figures: dict[str, Any] = json.loads(self._figures.read_text())
        return figures

    def _is_better(self, figures: Mapping[str, float], others: Mapping[str, float]) -> bool:
        one, other = figures[self._criterion], others[self._criterion]
        return one < other if self._criterion == "regret_steps" else one > other
