"""The run of `python -m benchmarks soak`."""

from collections.abc import Callable
from contextlib import closing

from rich.console import Console
from rich.progress import Progress

from benchmarks.soak.soak import Soak
from qguide.qnet.errors import ConfigError
from qguide.qnet.scoring.build import FastScorer


def soak_and_report(plan: Soak, progress_bar: Callable[[], Progress]) -> bool:
    """Run and report a soak test; True if it passed."""
    import torch

    from benchmarks.measurement.options import DTYPES, q_model_folder
    from benchmarks.soak.http_scorer import HttpScorer
    from benchmarks.soak.report import plot_soak, print_soak
    from benchmarks.soak.soak import run_soak
    from qguide.qnet.models.checkpoint import load_q_model
    from qguide.qnet.scoring.build import build_naive_scorer, build_shared_prefix_scorer

    torch.set_num_threads(plan.threads)
    # Loaded twice, so that the scorer under test cannot affect the reference.
    folder, dtype = q_model_folder(plan.q_model), DTYPES[plan.dtype]
    loaded, other = (load_q_model(folder, dtype=dtype, device=plan.device) for _ in "12")
    reference = build_naive_scorer(loaded)
    if loaded.renderer is None or reference.context is None:
        raise ConfigError(f"{plan.q_model} has no network, so it keeps no histories; name a QNet or an implicit Q")
    renderer, context = loaded.renderer, reference.context
    tested: HttpScorer | FastScorer
    if plan.url:
        tested = HttpScorer(plan.url, connections=plan.batch)
    else:
        tested = build_shared_prefix_scorer(other, cache_bytes=plan.budget_bytes)
    with closing(tested), progress_bar() as progress:
        time = progress.add_task("seconds", total=round(plan.seconds))

        def show(elapsed_s: float) -> None:
            progress.update(time, completed=int(elapsed_s))
            progress.refresh()

        run = run_soak(plan, tested, reference, renderer, context=context, on_progress=show)
    plan.output.write_text(run.model_dump_json(indent=1) + "\n")
    print_soak(run, Console())
    plot_soak(run, plan.output.with_suffix(".png"))
    return run.passed
