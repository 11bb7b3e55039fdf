"""`python -m benchmarks`: scoring, memory, the server, fairness, rollouts, scale, a GPU.

Cost of scoring, compared with baselines and a lower bound:

    python -m benchmarks score --params 28m --points 512x2x32,1024x5x48 --dtype float32 \
        --peers naive,padded,dynamic-cache --sessions 1,16,64 --output score.json

Soak test: memory within its budget and Q correct while sessions grow:

    python -m benchmarks soak --sessions 64 --minutes 10 --output soak.json

Load test of the whole server:

    python -m benchmarks serve --models scripted,embedded --clients 1,16,64 --seconds 10 \
        --output serve.json

Latency of one key under the load of another:

    python -m benchmarks fairness --seconds 20 --output fairness.json

Episodes of a hosted policy, many at once and one at a time:

    python -m benchmarks rollouts --parallel 1,64 --output rollouts.json

Storing of a step, by the number of steps before it:

    python -m benchmarks episodes --steps 10,100,500 --output episodes.json

What a cold history adds to a step while an upstream draws, read ahead and not:

    python -m benchmarks read-ahead --history-tokens 3000 --delay-s 0.3 --output read_ahead.json

Hybrid trunks beside an attention trunk of their size, served and trained:

    python -m benchmarks hybrids --trunks lfm2,granitemoehybrid,qwen3_5_text --output hybrids.json

Time and memory of the jobs that read rows:

    python -m benchmarks rows --rows 10000,300000 --jobs label,pairs --output rows.json

Simulation of many replicas from the measured cost of a step:

    python -m benchmarks scale --tasks 100,1000,10000 --replicas 1,10,100 --output scale.json

Success over episodes of an SDK's agent at a server that learns, and at one that does not:

    python -m benchmarks learning-curve --environments errands --seeds 5 --output learning.json

Latency of steps at a server that learns, beside one that does not:

    python -m benchmarks learning-latency --output learning_latency.json

Check of a GPU: contract tests, training steps and scoring at 1 B and 7 B, in under eight minutes:

    python -m benchmarks gpu --output gpu.json

Choice among recorded candidates of real LLMs, as two jobs (also stages of `qguide run`):

    python -m benchmarks recorded-groups \
        --config benchmarks/recorded/configs/intercode_sql/recorded_groups.toml

Figures of QLASS and IPR from finished runs, and ALFWorld's two engines side by side:

    python -m benchmarks success-curve runs/sweep/* --output runs/sweep.png
    python -m benchmarks step-rewards runs/accuracy_groups --rollouts 1,3,5,7 --output accuracy.json
    python -m benchmarks parity --games data/alfworld/valid_seen

Each benchmark writes JSON, and most write a plot beside it. Like every job they also read
`--config FILE` (TOML) and `--set field=value`.
"""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.options import (
    Candidates,
    Config,
    Device,
    Dtype,
    Output,
    Overrides,
    Peers,
    Points,
    Seed,
    Sizes,
    Threads,
    WarmUp,
    measure,
)
from benchmarks.commands.runs import (
    run_episodes,
    run_fairness,
    run_gpu,
    run_hybrids,
    run_learning_curve,
    run_learning_latency,
    run_read_ahead,
    run_rollouts,
    run_rows,
    run_scale,
    run_score,
    run_serve,
    run_soak,
)
from benchmarks.papers.commands import parity, read_pairs, step_rewards, success_curve
from benchmarks.recorded.jobs import RECORDED
from qguide.commands.jobs import add_jobs

app = typer.Typer(no_args_is_help=True, pretty_exceptions_show_locals=False)


@app.callback()
def bench() -> None:
    """Measure scoring, memory, the server, fairness, rollouts, scale and a GPU on this machine."""


@app.command()
def score(
    output: Output = None,
    params: Sizes = None,
    points: Points = None,
    dtype: Dtype = None,
    peers: Peers = None,
    sessions: Annotated[str | None, typer.Option(help="Concurrent sessions at the first point; '' for none.")] = None,
    repetitions: Annotated[int | None, typer.Option(help="Measured repetitions.")] = None,
    warm_ups: Annotated[int | None, typer.Option(help="Repetitions before them.")] = None,
    seed: Seed = None,
    threads: Threads = None,
    device: Device = None,
    vllm_python: Annotated[
        str | None, typer.Option(envvar="QGUIDE_VLLM_PYTHON", help="A Python that has vLLM.")
    ] = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Measure the time to score a step with a warm cache, against baselines and a lower bound."""
    measure("benchmarks.score.config:ScoreBench", run_score, locals())


@app.command()
def soak(
    output: Output = None,
    sessions: Annotated[int | None, typer.Option(help="Concurrent conversations.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Duration.")] = None,
    q_model: Annotated[str | None, typer.Option(help="embedded, or a checkpoint folder.")] = None,
    cache_mib: Annotated[float | None, typer.Option(help="Budget of the cache.")] = None,
    url: Annotated[
        str | None, typer.Option(help="A server with this Q model; without it, this process scores.")
    ] = None,
    pid: Annotated[int | None, typer.Option(help="Process id of the server, to measure its memory.")] = None,
    candidates: Candidates = None,
    batch: Annotated[int | None, typer.Option(help="Sessions scored in one call.")] = None,
    check_share: Annotated[
        float | None, typer.Option(help="Share of calls after which the Q of one is checked.")
    ] = None,
    dtype: Dtype = None,
    device: Device = None,
    threads: Threads = None,
    seed: Seed = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Grow sessions for minutes; fails if memory exceeds its budget or Q differs."""
    measure("benchmarks.soak.soak:Soak", run_soak, locals())


@app.command()
def serve(
    output: Output = None,
    models: Annotated[str | None, typer.Option(help="scripted, embedded; one server is started for each.")] = None,
    url: Annotated[str | None, typer.Option(help="A running server without keys to measure instead.")] = None,
    clients: Annotated[str | None, typer.Option(help="Concurrent clients; several numbers with commas.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Duration of each load.")] = None,
    warm_up_s: WarmUp = None,
    candidates: Candidates = None,
    threads: Threads = None,
    seed: Seed = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Measure throughput, latency and overhead of /v1/act and /v1/score over HTTP."""
    measure("benchmarks.serve.load_test:ServeBench", run_serve, locals())


@app.command()
def fairness(
    output: Output = None,
    seconds: Annotated[float | None, typer.Option(help="Duration of each scene.")] = None,
    warm_up_s: WarmUp = None,
    clients: Annotated[int | None, typer.Option(help="Clients of the other key.")] = None,
    endpoints: Annotated[str | None, typer.Option(help="score, rerank, act; several with commas.")] = None,
    scenes: Annotated[
        str | None, typer.Option(help="megabytes, batches, draws and others; several with commas.")
    ] = None,
    threads: Threads = None,
    seed: Seed = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Measure the latency of one key's requests, alone and under the load of another key."""
    measure("benchmarks.fairness.fairness:FairnessBench", run_fairness, locals())


@app.command()
def episodes(
    output: Output = None,
    steps: Annotated[str | None, typer.Option(help="Steps that are measured.")] = None,
    samples: Annotated[int | None, typer.Option(help="Times taken before each.")] = None,
    candidates: Candidates = None,
    candidate_bytes: Annotated[int | None, typer.Option(help="Size of a candidate.")] = None,
    redis_url: Annotated[str | None, typer.Option(help="A Redis to measure too.")] = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Measure what storing a step costs, by the number of steps before it."""
    measure("benchmarks.episodes.episodes:EpisodesBench", run_episodes, locals())


@app.command()
def hybrids(
    output: Output = None,
    trunks: Annotated[str | None, typer.Option(help="Architectures beside the attention trunk.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Episodes and trees of each trunk.")] = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Measure a warm step and a training tree of hybrid trunks, beside attention."""
    measure("benchmarks.hybrids.hybrids:HybridsBench", run_hybrids, locals())


@app.command()
def read_ahead(
    output: Output = None,
    shape: Annotated[str | None, typer.Option(help="tiny, 2m, 28m, 125m, 1b, 7b.")] = None,
    history_tokens: Annotated[int | None, typer.Option(help="Length of a history.")] = None,
    candidates: Candidates = None,
    candidate_tokens: Annotated[int | None, typer.Option(help="Length of a candidate.")] = None,
    delay_s: Annotated[float | None, typer.Option(help="Time of every answer.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Steps of each server.")] = None,
    threads: Threads = None,
    seed: Seed = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Measure what a cold history adds to a step of an upstream, read ahead and not."""
    measure("benchmarks.read_ahead.read_ahead:ReadAheadBench", run_read_ahead, locals())


@app.command()
def rows(
    output: Output = None,
    rows: Annotated[str | None, typer.Option(help="Numbers of rows, with commas.")] = None,
    jobs: Annotated[str | None, typer.Option(help="import, label, pairs, groups, write, lines; with commas.")] = None,
    steps: Annotated[int | None, typer.Option(help="Actions of an episode.")] = None,
    ray: Annotated[int | None, typer.Option(help="Tasks of Ray at a time; 0 for one process.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder for the corpora.")] = None,
    seed: Seed = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Measure time and memory of the jobs that read rows, by the number of rows."""
    measure("benchmarks.rows.rows:RowsBench", run_rows, locals())


@app.command()
def learning_curve(
    output: Output = None,
    environments: Annotated[
        str | None, typer.Option(help="errands, search, helpdesk, crafting; several with commas.")
    ] = None,
    agents: Annotated[str | None, typer.Option(help="SDKs: openai, anthropic; several with commas.")] = None,
    episodes: Annotated[int | None, typer.Option(help="Episodes of each seed.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.")] = None,
    first_seed: Annotated[int | None, typer.Option(help="The first seed.")] = None,
    delay_s: Annotated[float | None, typer.Option(help="Time of every answer of the model.")] = None,
    servers: Annotated[str | None, typer.Option(help="learning (with --learn), plain; both by default.")] = None,
    in_process: Annotated[
        bool | None, typer.Option("--in-process", help="Server in this process; fits take no time.")
    ] = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Measure how the success of an agent grows at a server that learns while it runs."""
    measure("benchmarks.learning.curve:CurveBench", run_learning_curve, locals())


@app.command()
def learning_latency(
    output: Output = None,
    environment: Annotated[str | None, typer.Option(help="errands, search, helpdesk or crafting.")] = None,
    episodes: Annotated[int | None, typer.Option(help="Episodes of each server.")] = None,
    seed: Seed = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Measure the latency of steps at a server that learns, beside one that does not."""
    measure("benchmarks.learning.latency:LatencyBench", run_learning_latency, locals())


@app.command()
def gpu(
    output: Output = None,
    device: Device = None,
    small: Annotated[bool | None, typer.Option("--small", help="Tiny shapes, to try the check on a CPU.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Limit of the whole check.")] = None,
    patience: Annotated[
        float | None, typer.Option(help="Factor of the parts' own limits, for slower machines.")
    ] = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Check a GPU: contract tests, training steps and scoring at 1 B and 7 B."""
    measure("benchmarks.gpu.config:GpuCheck", run_gpu, locals())


@app.command()
def rollouts(
    output: Output = None,
    parallel: Annotated[str | None, typer.Option(help="Episodes at once; several numbers with commas.")] = None,
    episodes: Annotated[int | None, typer.Option(help="Episodes for each number.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of an episode.")] = None,
    delay_s: Annotated[float | None, typer.Option(help="Time of every answer.")] = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Measure how much faster episodes of a hosted policy are at once than one at a time."""
    measure("benchmarks.rollouts.rollouts:RolloutsBench", run_rollouts, locals())


@app.command()
def scale(
    output: Output = None,
    costs: Annotated[
        Path | None, typer.Option(help="JSON file of measured costs; without it the embedded models' are.")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="Numbers of episodes, with commas.")] = None,
    replicas: Annotated[str | None, typer.Option(help="Numbers of replicas, with commas.")] = None,
    episodes_per_replica: Annotated[int | None, typer.Option(help="Episodes at once.")] = None,
    cache_tokens: Annotated[int | None, typer.Option(help="Of each replica's cache.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Simulations of each row.")] = None,
    threads: Threads = None,
    seed: Seed = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Simulate time and cost of up to 10,000 tasks on up to 100 replicas from a step's cost."""
    measure("benchmarks.scale.config:ScaleBench", run_scale, locals())


add_jobs(app, RECORDED)
for _command in (success_curve, step_rewards, read_pairs, parity):
    app.command()(_command)
