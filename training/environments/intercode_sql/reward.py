"""InterCode-SQL's reward: agreement of two results in their records and in the records' order."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from scipy import stats

Records = Sequence[object]


def execution_reward(answer: Records | None, gold: Records | None) -> float:
    """IoU of the records times Kendall's tau-b of the common ones, in [-1, 1].

    Where tau is not defined (one common record, or all of them equal) the IoU alone counts; where
    it is, the product is rounded to hundredths. All as the benchmark's published code has it.

    Args:
        answer: the agent's records; None for an error.
        gold: those of the right query; None if it fails.
    """
    if answer is None or gold is None:
        return 0.0
    overlap = record_overlap(answer, gold)
    answered, wanted = _texts(answer), _texts(gold)
    common = Counter(answered) & Counter(wanted)
    order = _tau(_kept(answered, common), _kept(wanted, common))
    return overlap if math.isnan(order) else round(overlap * order, 2)


def record_overlap(answer: Records, gold: Records) -> float:
    """IoU of two lists of records as multisets of texts; 1 if both are empty."""
    answered, wanted = Counter(_texts(answer)), Counter(_texts(gold))
    union = answered | wanted
    return (answered & wanted).total() / union.total() if union else 1.0


def _texts(records: Records) -> list[str]:
    return [str(record) for record in records]


def _kept(records: Iterable[str], common: Counter[str]) -> list[str]:
    """The records that are common, each as often as it is, in their order."""
    left = common.copy()
    kept = []
    for record in records:
        if left[record] > 0:
            left[record] -= 1
            kept.append(record)
    return kept


def _tau(one: Sequence[str], other: Sequence[str]) -> float:
    """Kendall's tau-b of two lists by alphabetical rank; nan where they are constant.

    It asks if the records at the same places of both lists are ranked alike, so two lists in one
    order have 1, whichever it is.
    """
    if len(set(one)) < 2:
        return math.nan
    ranks = {text: rank for rank, text in enumerate(sorted(set(one)))}
    pair = ([ranks[text] for text in one], [ranks[text] for text in other])
    return float(stats.kendalltau(*pair).statistic)
