"""Comparisons that can be told from chance by Holm's rule over all those of a results page.

    python -m tools.page_families

A page's family is every comparison that was made for it, printed or not.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

RESULTS: Final = Path(__file__).parents[1] / "results"
LEVEL: Final = 0.05
FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "methods.md": (
        "low_methods",
        "low_methods_retrained",
        "low_methods_second",
        "low_variations",
        "low_methods_third",
        "low_ppo",
        "low_equal_tokens",
        "low_mended",
        "low_valid_seen",
        "other_agent_shipped",
        "other_agent_ipr",
        "other_agent_api",
    ),
    "environments.md": (
        "environments",
        "webshop_mended",
        "hotpotqa_mended",
        "hotpotqa_guided",
        "hotpotqa_learned",
        "hotpotqa_learned_f1",
        "sciworld_learned",
        "sciworld_learned_test",
    ),
    "embedded.md": (
        "embedded_valid_seen",
        "embedded_equal_tokens",
        "embedded_posterior",
        "embedded_validation",
        "embedded_verifier",
        "embedded_verifier_of_four",
        "embedded_beams",
        "real_valid_seen",
        "real_best_of_n",
        "real_validation",
    ),
    "real-llms.md": ("real_llms",),
}
"""Files of `results/` with the comparisons that were made for each page, printed or not."""


class Compared(NamedTuple):
    """One comparison of a page, and its p-value adjusted over the page."""

    table: str
    name: str
    difference: float
    p_value: float
    adjusted: float


def page_family(page: str) -> list[Compared]:
    """All comparisons of a page, with p-values adjusted over all of them."""
    found = [
        (name, comparison)
        for name in FAMILIES[page]
        for comparison in _comparisons(json.loads((RESULTS / f"{name}.json").read_text()))
    ]
    adjusted = holm_p_values([comparison["p_value"] for _, (_, comparison) in found])
    return [
        Compared(table, name, comparison["difference"], comparison["p_value"], p)
        for (table, (name, comparison)), p in zip(found, adjusted, strict=True)
    ]


def _comparisons(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every comparison inside a table, or inside tables of tables, with its row's name."""
    if isinstance(value, dict):
        if value.get("against"):
            against = value["against"]
            run = Path(value["run"]).name
            yield f"{run} {against['method']} - {against['other']}", against
        elif "p_value" in value:
            yield f"{value['method']} - {value['other']}", value
        else:
            for part in value.values():
                yield from _comparisons(part)
    elif isinstance(value, list):
        for part in value:
            yield from _comparisons(part)


def main() -> None:
    """Print what remains of each page."""
    for page in FAMILIES:
        family = page_family(page)
        kept = [each for each in family if each.adjusted <= LEVEL]
        print(f"{page}: {len(kept)} of {len(family)} comparisons remain")  # noqa: T201
        for each in kept:
            print(  # noqa: T201
                f"  {each.table}: {each.name} {100 * each.difference:+.1f} (p = {each.p_value:.4f})"
            )


def holm_p_values(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm's step-down rule, in the order given.

    One that is at most 0.05 can be told from chance beside all others of its family at 5 %.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, number in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[number]))
        adjusted[number] = highest
    return adjusted


if __name__ == "__main__":
    main()
