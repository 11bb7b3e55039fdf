"""Tables and plot of the page on real LLMs, from runs of `qguide choose-recorded`.

    python -m tools.real_llms bfcl_small=runs/bfcl/small mint_after_two=runs/mint/after_two

keeps each run's figures and its rows, one a task, in `results/`, draws the plot and writes the
tables into docs/results/real-llms.md and recorded-candidates.md. Without runs it writes plot and pages again.
"""

import gzip
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from qguide.training.choosing.choosers import KNOWING, STOPPING
from qguide.training.choosing.figures import comparison
from qguide.training.data.runs import RunFolder

ROOT: Final = Path(__file__).parents[1]
FIGURES: Final = ROOT / "results/real_llms.json"
ROWS: Final = ROOT / "results/real_llms_rows.jsonl.gz"
PLOT: Final = ROOT / "results/real_llms.png"
PAGE: Final = ROOT / "docs/results/real-llms.md"
OTHERS_PAGE: Final = ROOT / "docs/results/recorded-candidates.md"
BEGIN: Final = "<!-- tables: python -m tools.real_llms -->"
END: Final = "<!-- end of tables -->"
CHOOSER: Final = "q in group"
NAMES: Final[Mapping[str, str]] = {
    "bfcl_small": "BFCL, small models",
    "bfcl_weak": "BFCL, weak models",
    "sql": "InterCode-SQL",
    "mint_after_one": "MINT, after one turn",
    "mint_after_two": "MINT, after two turns",
    "bash": "InterCode-Bash",
    "fireact": "FireAct",
}
UNSEEN: Final[Mapping[str, str]] = {
    "bfcl_unseen_families": NAMES["bfcl_small"],
    "bfcl_weak_unseen_families": NAMES["bfcl_weak"],
    "mint_after_one_unseen_families": NAMES["mint_after_one"],
    "mint_after_two_unseen_families": NAMES["mint_after_two"],
    "bash_unseen_families": NAMES["bash"],
}
"""The same with half of the models' families held back, too."""
SMALL: Final[Mapping[str, str]] = {
    "terminal_bench": "Terminal-Bench, ended",
    "tau_first_words": "tau-bench, first words",
    "tau_after_three": "tau-bench, after three turns",
    "tau_after_six": "tau-bench, after six turns",
    "tau_ended": "tau-bench, ended",
}
"""Sources of fewer than 100 tasks."""
_QNETS: Final = {"q": "QNet from scratch"}
_NUMBERS: Final = {"q": "74 numbers alone", CHOOSER: "and in its group"}
OTHERS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "mint_after_two_qnets": ("mint_after_two", _QNETS),
    "bfcl_small_qnets": ("bfcl_small", _QNETS),
    "mint_after_two_numbers": ("mint_after_two", _NUMBERS),
    "bfcl_small_numbers": ("bfcl_small", _NUMBERS),
}
"""Q models of other kinds in the groups of a source, by their choosers."""
TOLD: Final = (
    "bfcl_all",
    *UNSEEN,
    *OTHERS,
    "mint_second_answer_unread",
    "mint_ended",
    "mint_theoremqa_by_itself",
    "mint_theoremqa_by_gsm8k_and_math",
    *(f"mint_tasks_{tasks}" for tasks in (25, 50, 100, 200)),
    "bfcl_parallel_by_itself",
    "bfcl_parallel_by_simple",
)
"""Sources without a row in the tables: sentences of the page tell of them."""
PLOTTED: Final = (*NAMES, "terminal_bench")
BY_SECTION: Final = ("mint_after_one", "mint_after_two")
STOPPED: Final = "mint_after_two"
_OTHERS: Final = ("− random", "− best rule", f"− {KNOWING}")


def collect(runs: Mapping[str, Path]) -> None:
    """Keep the figures and the rows of some runs; those of other names stay as they are."""
    figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    rows = [row for row in read_rows() if row["source"] not in runs] if ROWS.exists() else []
    for name, path in runs.items():
        run = RunFolder(path)
        figures[name] = json.loads(run.metrics.read_text())
        for line in run.rows.read_text().splitlines():
            rows.append({"source": name, **json.loads(line)})
    for name, (source, choosers) in OTHERS.items():
        if name in figures:
            figures[name]["beside"] = [_beside(rows, name, source, chooser) for chooser in choosers]
    order = {name: place for place, name in enumerate((*NAMES, *SMALL, *TOLD))}
    ordered = {name: figures[name] for name in sorted(figures, key=order.__getitem__)}
    FIGURES.write_text(f"{json.dumps(ordered, indent=1)}\n")
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    ROWS.write_bytes(gzip.compress(lines.encode(), mtime=0))


def _beside(rows: Sequence[Mapping[str, Any]], name: str, source: str, chooser: str) -> dict[str, Any]:
    """A Q model of another kind less the source's, on the tasks of both."""
    own, theirs = (
        {row["task_id"]: row["rewards"][key] for row in rows if row["source"] == one}
        for one, key in ((name, chooser), (source, CHOOSER))
    )
    other = f"{source}: {CHOOSER}"
    means = {chooser: np.array(list(own.values())), other: np.array([theirs[task] for task in own])}
    return {"reward": round(float(means[other].mean()), 4), **comparison(means, chooser, other)}


def read_rows() -> list[dict[str, Any]]:
    """One row for each task of each source."""
    return [json.loads(line) for line in gzip.decompress(ROWS.read_bytes()).splitlines()]


def tables(figures: Mapping[str, Any]) -> str:
    """The tables of the page."""
    every, figures = figures, {name: told for name, told in figures.items() if name in NAMES}
    lines = [
        "What each chooser earns, in percent, of the groups of all tasks; of **Q** also each of three trainings:",
        "",
        *_head(
            *("source", "tasks", "attempts of models (families)", "calls read", "random", "best rule", KNOWING),
            *("Q alone", "votes × Q alone", "**Q**", "licensed", "oracle"),
        ),
        *(_row(NAMES[name], told) for name, told in figures.items()),
        "",
        "**Q** less the others, in points (95 % interval over tasks, p of sign flips):",
        "",
        *_head("source", *_OTHERS, "− best rule, untouched tasks"),
        *(_differences(NAMES[name], told) for name, told in figures.items()),
        "",
        "Unseen families (half of the models' families held back, too), and sources of fewer than 100 tasks:",
        "",
        *_compact({**{name: f"unseen: {title}" for name, title in UNSEEN.items()}, **SMALL}, every),
    ]
    if parts := [figures[name]["all"] for name in BY_SECTION if name in figures]:
        lines += ["", "MINT by part, after one turn and after two:", "", *_sections(parts)]
    if STOPPED in figures:
        *some, all_five = figures[STOPPED]["all"]["stopping"]
        unit = next(name for name in ("tokens", "characters") if name in all_five[CHOOSER])
        of_all = f"{_percent(all_five[CHOOSER]['success'])}, {all_five[CHOOSER][unit]:,}"
        title = f"{NAMES[STOPPED]}, some stopped: success, {unit} (% of all five's: {of_all}):"
        lines += ["", title, "", *_stopping(some[:3], unit)]
    return "\n".join(lines)


def _stopping(rows: Sequence[Mapping[str, Any]], unit: str) -> Iterator[str]:
    """Success of the best attempt that goes on, and the tokens or characters that are written."""
    yield from _head("go on", *STOPPING)
    for row in rows:
        shown = (
            f"{_percent(row[name]['success'])}, {row[name][unit]:,} ({100 * row[name]['written']:.0f})"
            for name in STOPPING
        )
        yield f"| {row['go_on']} | {' | '.join(shown)} |"


def _head(*columns: str) -> list[str]:
    return [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _row(name: str, figures: Mapping[str, Any]) -> str:
    told = figures["all"]
    families = f" ({figures['families']})" if figures["families"] > 1 else ""
    rewards = {key: each["reward"] for key, each in told["choosers"].items()}
    best = told["best_rule"]
    own = told["choosers"][CHOOSER]
    trainings = ", ".join(map(_percent, own["trainings"]))
    cells = [
        f"{figures['attempts']:,} of {figures['models']}{families}",
        f"{_percent(figures['calls_read'])} %" if name.startswith("BFCL") else "",
        _percent(rewards["random"]),
        f"{_percent(rewards[best])} ({best})",
        *(_percent(rewards[key]) for key in (KNOWING, "q", "posterior")),
        f"**{_percent(own['reward'])}** ({_percent(own['low'])} to {_percent(own['high'])}; {trainings})",
        _percent(rewards["licensed"]) if "licensed" in rewards else "",
        _percent(rewards["oracle"]),
    ]
    return f"| {name} | {told['tasks']:,} | {' | '.join(cells)} |"


def others_table(figures: Mapping[str, Any]) -> str:
    """The table of Q models of other kinds."""
    lines = _head(*("source", "tasks", "random", "best rule", "Q model", "it earns", "**Q**", *_OTHERS[:2], "− **Q**"))
    for name, (source, choosers) in OTHERS.items():
        for beside in figures[name]["beside"] if name in figures else ():
            told, chooser = figures[name]["all"], beside["method"]
            best, own = told["best_rule"], told["choosers"][chooser]
            trainings = ", ".join(map(_percent, own["trainings"]))
            cells = [
                f"{told['tasks']:,}",
                _percent(told["choosers"]["random"]["reward"]),
                f"{_percent(told['choosers'][best]['reward'])} ({best})",
                choosers[chooser],
                f"{_percent(own['reward'])} ({_percent(own['low'])} to {_percent(own['high'])}; {trainings})",
                _percent(beside["reward"]),
                *(_difference(told, other, chooser) for other in ("random", best)),
                _points(beside),
            ]
            lines.append(f"| {NAMES[source]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _difference(told: Mapping[str, Any], other: str, chooser: str = CHOOSER) -> str:
    [found] = [each for each in told["comparisons"] if (each["method"], each["other"]) == (chooser, other)]
    return _points(found)


def _points(found: Mapping[str, Any]) -> str:
    """A difference with its interval and its p-value."""
    difference, low, high = (100 * found[key] for key in ("difference", "low", "high"))
    points = f"{difference:+.1f} ({low:.1f} to {high:.1f})".replace("-", "−")
    p_value = f"= {found['p_value']:.4f}" if found["p_value"] >= 5e-5 else "< 0.0001"
    return f"{points}, p {p_value}"


def _differences(name: str, told: Mapping[str, Any]) -> str:
    every = told["all"]
    rest = told.get("untouched", every)  # of a source that came after the recipe, all tasks
    others = ("random", every["best_rule"], KNOWING)
    cells = [*(_difference(every, other) for other in others), _difference(rest, rest["best_rule"])]
    return f"| {name} | {' | '.join(cells)} |"


def _compact(names: Mapping[str, str], figures: Mapping[str, Any]) -> Iterator[str]:
    """Sources in a line each, with Q's trainings."""
    yield from _head(*("source", "tasks", "random", "best rule", KNOWING, "**Q**", "oracle"), *_OTHERS)
    for name in names:
        if name in figures:
            told = figures[name]["all"]
            best = told["best_rule"]
            rewards = [
                _percent(told["choosers"][key]["reward"]) for key in ("random", best, KNOWING, CHOOSER, "oracle")
            ]
            rewards[1] += f" ({best})"
            rewards[3] += f" ({', '.join(map(_percent, told['choosers'][CHOOSER]['trainings']))})"
            differences = (_difference(told, other) for other in ("random", best, KNOWING))
            yield f"| {names[name]} | {told['tasks']:,} | {' | '.join((*rewards, *differences))} |"


def _sections(parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The parts of a benchmark, with the columns of one source after the other."""
    columns = [("random", told["best_rule"], KNOWING, CHOOSER, "oracle") for told in parts]
    named = (name if name != CHOOSER else "**Q**" for keys in columns for name in keys)
    yield from _head("part", "tasks", *named)
    for name, first in parts[0]["sections"].items():
        own = [told["sections"][name][key] for told, keys in zip(parts, columns, strict=True) for key in keys]
        yield f"| {name} | {first['tasks']} | {' | '.join(map(_percent, own))} |"


def plot(figures: Mapping[str, Any]) -> None:
    """Random choice, the best rule, votes × Q, Q and the oracle of each source."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    shown = [name for name in PLOTTED if name in figures]
    drawn, axes = pyplot.subplots(figsize=(11, 3.6))
    bars = ("random", "best rule", "posterior", CHOOSER, "oracle")
    labels = ("random", "best rule", "votes × Q alone", "Q", "oracle")
    colours = ("#b8bfca", "#7c8798", "#7fb8a4", "#1f8a70", "#e3e6ea")
    for place, (key, label, colour) in enumerate(zip(bars, labels, colours, strict=True)):
        chosen = [
            figures[name]["all"]["choosers"][figures[name]["all"]["best_rule"] if key == "best rule" else key]
            for name in shown
        ]
        heights = [100 * each["reward"] for each in chosen]
        spread = [
            [100 * (each["reward"] - each["low"]) for each in chosen],
            [100 * (each["high"] - each["reward"]) for each in chosen],
        ]
        at = [i + (place - 2) * 0.17 for i in range(len(shown))]
        errors = {"ecolor": "#555", "capsize": 2, "lw": 0.8}
        axes.bar(at, heights, 0.16, yerr=spread, label=label, color=colour, error_kw=errors)
    axes.set_xticks(range(len(shown)), [{**NAMES, **SMALL}[name].replace(", ", ",\n") for name in shown])
    axes.set_ylabel("success or reward, %")
    axes.set_ylim(0, 105)
    axes.legend(ncols=5, loc="upper center", fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    drawn.tight_layout()
    drawn.savefig(PLOT, dpi=110)


def write_pages(figures: Mapping[str, Any]) -> None:
    """Put the tables between their marks."""
    for page, text in ((PAGE, tables(figures)), (OTHERS_PAGE, others_table(figures))):
        before, _, rest = page.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main(arguments: Sequence[str]) -> None:
    """Keep runs, draw and write."""
    collect({name: Path(path) for name, _, path in (each.partition("=") for each in arguments)})
    figures = json.loads(FIGURES.read_text())
    plot(figures)
    write_pages(figures)


if __name__ == "__main__":
    main(sys.argv[1:])
