"""Weights and targets of the Q regression at each position of an episode (QLASS, equation 11)."""

from collections.abc import Sequence
from typing import Literal

LossOn = Literal["all", "action", "last"]


def regression_columns(
    length: int,
    action_spans: Sequence[tuple[int, int]],
    q_values: Sequence[float | None],
    *,
    loss_on: LossOn,
) -> dict[str, list[float]]:
    """Per-token weights and targets with which one pass over an episode gives the papers' loss.

    Equation 11 puts the label q_t of (s_t, a_t) on each of its n_t positions with weight 1/n_t.
    An episode holds all its (s_t, a_t) as prefixes, and sum_t (1/n_t) (q - q_t)^2 over the labels
    that share a position is w (q - m)^2 + constant, with w = sum_t 1/n_t and m = sum_t q_t/n_t / w.
    So the gradient is the same and each token goes through the trunk once.

    Args:
        length: tokens of the episode.
        action_spans: [start, end) of each action.
        q_values: one label per action; None for an action whose label is in another path.
        loss_on: positions with the label: `all` up to the action's end, those of the `action`, or
            only its `last` one.

    Returns:
        Columns `weight` and `target`; the weights of one label sum to 1.
    """
    weight = [0.0] * length
    weighted = [0.0] * length
    for (start, end), q in zip(action_spans, q_values, strict=True):
        if q is None:
            continue
        first = {"all": 0, "action": start, "last": end - 1}[loss_on]
        share = 1.0 / (end - first)
        for position in range(first, end):
            weight[position] += share
            weighted[position] += share * q
    target = [m / w if w else 0.0 for m, w in zip(weighted, weight, strict=True)]
    return {"weight": weight, "target": target}
