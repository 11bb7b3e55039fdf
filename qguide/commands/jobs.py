"""Commands of the offline jobs, from `qguide collect` to `qguide evaluate`.

A job reads `--config FILE` (TOML) and `--set field=value`; run again, it resumes. Jobs are imported
inside their commands, so that `--help` does not import torch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from qguide.commands.errors import shown_errors
from qguide.commands.extras import ExtrasGroup
from qnet.errors import ConfigError
from qnet.models.manifest import Manifest
from training.configs.job_files import load_config, read_environment
from training.environments.registry import DEFAULT_ENVIRONMENT, ENVIRONMENTS, find_environment

app = typer.Typer(
    cls=ExtrasGroup,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Train Q models from an agent's own exploration, serve them, and evaluate guidance.",
)

ENVIRONMENT_HELP = f"{', '.join(ENVIRONMENTS)}, or package.module:BUNDLE."

CONFIG_HELP = "The job's TOML file; docs/reference/jobs.md lists its fields and their defaults."

Config = Annotated[Path | None, typer.Option(help=CONFIG_HELP)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="field=value or table.field=value; overrides the file."),
]
Games = Annotated[
    Path | None, typer.Option(help="Folder of game files; without it games are generated.")
]


@app.command()
def collect(config: Config = None, overrides: Overrides = None) -> None:
    """Collect trajectories of an expert, or a policy's own successes, for behaviour cloning."""
    with shown_errors():
        from dataclasses import asdict

        from training.jobs.collect import CollectConfig, run_collect

        _show("collect", asdict(run_collect(load_config(CollectConfig, config, overrides or ()))))


@app.command()
def sft(config: Config = None, overrides: Overrides = None) -> None:
    """Train a policy on trajectories (behaviour cloning)."""
    with shown_errors():
        from training.jobs.sft import SftConfig, run_sft

        _show("sft", run_sft(load_config(SftConfig, config, overrides or ())).metrics)


@app.command()
def explore(config: Config = None, overrides: Overrides = None) -> None:
    """Grow exploration trees with a policy (QLASS algorithm 2)."""
    with shown_errors():
        from training.jobs.explore import ExploreConfig, run_explore

        _show("explore", run_explore(load_config(ExploreConfig, config, overrides or ())))


@app.command()
def groups(config: Config = None, overrides: Overrides = None) -> None:
    """Build decision groups: value each candidate of played episodes by playing on."""
    with shown_errors():
        from training.jobs.groups import GroupsConfig, run_groups

        _show("groups", run_groups(load_config(GroupsConfig, config, overrides or ())))


@app.command()
def label(config: Config = None, overrides: Overrides = None) -> None:
    """Label the nodes of exploration trees with Q-values (QLASS algorithm 3)."""
    with shown_errors():
        from training.jobs.label import LabelConfig, run_label

        _show("label", run_label(load_config(LabelConfig, config, overrides or ())))


@app.command()
def pairs(config: Config = None, overrides: Overrides = None) -> None:
    """Preference pairs from decision groups, exploration trees and episodes."""
    with shown_errors():
        from training.jobs.pairs import PairsConfig, run_pairs

        _show("pairs", run_pairs(load_config(PairsConfig, config, overrides or ())))


@app.command()
def rro(config: Config = None, overrides: Overrides = None) -> None:
    """Preference pairs by reward rising sampling (RRO algorithm 1)."""
    with shown_errors():
        from training.jobs.rro import RroConfig, run_rro

        _show("rro", run_rro(load_config(RroConfig, config, overrides or ())))


@app.command()
def ipr(config: Config = None, overrides: Overrides = None) -> None:
    """Preference pairs of an agent's mistakes along expert trajectories (IPR)."""
    with shown_errors():
        from training.jobs.ipr import IprConfig, run_ipr

        _show("ipr", run_ipr(load_config(IprConfig, config, overrides or ())))


@app.command()
def train_dpo(config: Config = None, overrides: Overrides = None) -> None:
    """An implicit Q from preference pairs (StepQ): step-level or trajectory-level DPO."""
    with shown_errors():
        from training.jobs.train_dpo import TrainDpoConfig, run_train_dpo

        trained = run_train_dpo(load_config(TrainDpoConfig, config, overrides or ()))
        _show_trained("train-dpo", trained)


@app.command()
def train_policy(config: Config = None, overrides: Overrides = None) -> None:
    """Improve a policy by the values of its own candidates: group-relative optimization (GRPO)."""
    with shown_errors():
        from training.jobs.train_policy import TrainPolicyConfig, run_train_policy

        trained = run_train_policy(load_config(TrainPolicyConfig, config, overrides or ()))
        _show("train-policy", trained.metrics)


@app.command()
def train_qnet(config: Config = None, overrides: Overrides = None) -> None:
    """Train a Q model on labelled trees and decision groups."""
    with shown_errors():
        from training.jobs.train_qnet import TrainQNetConfig, run_train_qnet

        trained = run_train_qnet(load_config(TrainQNetConfig, config, overrides or ()))
        _show_trained("train-qnet", trained)


@app.command()
def paraphrase(config: Config = None, overrides: Overrides = None) -> None:
    """Paraphrase tasks, for methods that draw candidates in other words (Q*Agent-I-aug)."""
    with shown_errors():
        from training.jobs.paraphrase import ParaphraseConfig, run_paraphrase

        job = load_config(ParaphraseConfig, config, overrides or ())
        _show("paraphrase", run_paraphrase(job))


@app.command()
def evaluate(
    output: Annotated[Path | None, typer.Option(help="Folder to write or resume.")] = None,
    environment: Annotated[str | None, typer.Option(help=ENVIRONMENT_HELP)] = None,
    engine: Annotated[str | None, typer.Option(help="python or textworld.")] = None,
    games: Games = None,
    generated: Annotated[str | None, typer.Option(help="FIRST:COUNT of generated games.")] = None,
    task_ids: Annotated[Path | None, typer.Option(help="File of task ids, one per line.")] = None,
    limit: Annotated[int | None, typer.Option(help="Maximum number of tasks.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="embedded, a folder, upstream:NAME or http://HOST/v1#MODEL.")
    ] = None,
    qnet: Annotated[str | None, typer.Option(help="embedded, or a folder.")] = None,
    methods: Annotated[str | None, typer.Option(help="Separated by commas.")] = None,
    candidates: Annotated[int | None, typer.Option(help="M.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Separated by commas.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Except for greedy draws.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Maximum actions per episode.")] = None,
    greedy_candidate: Annotated[
        bool | None, typer.Option(help="Draw the first of the M candidates greedily.")
    ] = None,
    tie_break: Annotated[str | None, typer.Option(help="first, most-drawn or logprob.")] = None,
    parallel: Annotated[int | None, typer.Option(help="Tasks played at the same time.")] = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Evaluate guidance and baselines on the same tasks, seeds and candidates."""
    options = dict(locals())
    with shown_errors():
        from training.jobs.evaluate import EvaluateConfig, run_evaluate

        values = _evaluate_options(options)
        run_evaluate(load_config(EvaluateConfig, config, overrides or (), options=values))


def _evaluate_options(options: Mapping[str, Any]) -> dict[str, object]:
    """The command line options of `evaluate` as fields of its configuration."""
    own = "output policy qnet candidates temperature max_steps greedy_candidate tie_break parallel"
    tasks = "engine games task_ids limit"
    values: dict[str, object] = {name: options[name] for name in own.split()}
    values |= {f"environment.{name}": options[name] for name in tasks.split()}
    values["environment.name"] = options["environment"]
    values["methods"] = _split(options["methods"])
    values["seeds"] = _split(options["seeds"])
    if options["generated"] is not None:
        first, colon, count = options["generated"].partition(":")
        if not colon or options["games"] is not None:
            raise ConfigError(
                f"--generated {options['generated']}: use FIRST:COUNT, such as 0:200, and omit "
                "--games"
            )
        values |= {"environment.first_seed": first, "environment.count": count}
    return values


def _split(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


@app.command()
def success_curve(
    runs: Annotated[list[Path], typer.Argument(help="Output folders of evaluations.")],
    output: Annotated[Path, typer.Option(help="Image file to write.")],
) -> None:
    """Plot success against completion tokens, for evaluations that differ in M."""
    with shown_errors():
        from training.jobs.success_curve import run_success_curve

        run_success_curve(runs, output, console=Console())


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Output folders of evaluations.")],
    against: Annotated[
        str, typer.Option(help="Method of the first evaluation that all are compared with.")
    ] = "greedy",
    output: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
) -> None:
    """Compare evaluations of different models on the same tasks."""
    with shown_errors():
        from training.jobs.compare import run_compare

        run_compare(runs, against, output, console=Console())


@app.command()
def step_rewards(
    runs: Annotated[list[Path], typer.Argument(help="Run folders of groups or rro.")],
    output: Annotated[Path, typer.Option(help="JSON file to write.")],
    rollouts: Annotated[
        str, typer.Option(help="Numbers of roll-outs whose mean is judged by the others.")
    ] = "1,3,5",
    min_gap: Annotated[
        float, typer.Option(help="Smallest difference of two rewards that counts as one.")
    ] = 0.1,
) -> None:
    """Accuracy of step rewards against longer roll-outs, and their mean at each step."""
    with shown_errors():
        from training.evaluation.step_rewards import run_step_rewards

        numbers = [_number(text) for text in _split(rollouts) or ()]
        run_step_rewards(runs, output, rollouts=numbers, min_gap=min_gap, console=Console())


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"--rollouts: {text!r} is no whole number; write numbers such as 1,3,5")
    return int(text)


@app.command()
def choice_regret(config: Config = None, overrides: Overrides = None) -> None:
    """Measure the regret of a Q model's choices on decision groups; no episodes are played."""
    with shown_errors():
        from training.jobs.choice_regret import ChoiceRegretConfig, run_choice_regret

        job = load_config(ChoiceRegretConfig, config, overrides or ())
        _show("choice-regret", run_choice_regret(job))


@app.command()
def recorded_groups(config: Config = None, overrides: Overrides = None) -> None:
    """Decision groups from recorded LLM episodes on InterCode-SQL."""
    with shown_errors():
        from training.jobs.recorded.groups import RecordedGroupsConfig, run_recorded_groups

        job = load_config(RecordedGroupsConfig, config, overrides or ())
        _show("recorded-groups", run_recorded_groups(job))


@app.command()
def rerank_recorded(config: Config = None, overrides: Overrides = None) -> None:
    """Choice among recorded candidates by Q and by its baselines; nothing is played."""
    with shown_errors():
        from training.jobs.recorded.rerank import RerankConfig, run_rerank

        _show("rerank-recorded", run_rerank(load_config(RerankConfig, config, overrides or ())))


@app.command()
def parity(
    environment: Annotated[str, typer.Argument(help=ENVIRONMENT_HELP)],
    games: Annotated[Path, typer.Option(help="Folder of game files.")],
    episodes: Annotated[int, typer.Option(min=1, help="Number of games.")] = 40,
    seed: Annotated[int, typer.Option(help="Seed of the choice of games and the walks.")] = 0,
    max_steps: Annotated[int, typer.Option(min=1, help="Maximum steps of a walk.")] = 30,
) -> None:
    """Play an environment's two engines side by side and report where they differ."""
    with shown_errors():
        compare = find_environment(environment).compare_engines
        if compare is None:
            raise ConfigError(
                f"environment {environment!r} has only one engine; choose an environment with two"
            )
        agree = compare(games, episodes=episodes, seed=seed, max_steps=max_steps)
    raise typer.Exit(0 if agree else 1)


@app.command()
def generate(
    output: Annotated[Path, typer.Option(help="Folder to write the games into.")],
    environment: Annotated[str, typer.Argument(help=ENVIRONMENT_HELP)] = DEFAULT_ENVIRONMENT,
    count: Annotated[int, typer.Option(min=1, help="Number of games.")] = 100,
    first_seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the first game.")] = 0,
) -> None:
    """Write generated games in the file format of the real ones."""
    with shown_errors():
        write = find_environment(environment).write_games
        if write is None:
            raise ConfigError(
                f"environment {environment!r} cannot write games; choose another environment"
            )
        written = write(output, count=count, first_seed=first_seed)
        _show("generate", {**written, "output": output})


@app.command()
def play(
    environment: Annotated[str, typer.Option(help=ENVIRONMENT_HELP)] = DEFAULT_ENVIRONMENT,
    games: Annotated[Path | None, typer.Option(help="Folder of game files.")] = None,
    generated: Annotated[int, typer.Option(min=0, help="Seed of a generated game.")] = 0,
    task: Annotated[int, typer.Option(min=0, help="Index of the game in the folder.")] = 0,
    url: Annotated[str, typer.Option(help="URL of the server.")] = "http://127.0.0.1:8000",
    candidates: Annotated[int, typer.Option(min=1, help="M.")] = 5,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature.")] = 0.7,
    seed: Annotated[int, typer.Option(min=0, help="Sampling seed.")] = 0,
    max_steps: Annotated[int, typer.Option(min=1, help="Maximum number of actions.")] = 40,
) -> None:
    """Play one episode against a running server, showing candidates, Q and the choice."""
    with shown_errors():
        from training.jobs.play import PlayConfig, run_play

        tasks = {"name": environment, "first_seed": generated, "count": 1}
        if games is not None:
            tasks["games"] = games
        run_play(
            PlayConfig(
                environment=read_environment(tasks),
                url=url,
                task=task,
                num_candidates=candidates,
                temperature=temperature,
                seed=seed,
                max_steps=max_steps,
            ),
            console=Console(),
        )


def _show_trained(title: str, trained: Manifest) -> None:
    """Print the figures of a trained Q model, then its licence."""
    from training.data.runs import is_main_process
    from training.licence.report import show_licence

    _show(title, trained.metrics)
    if is_main_process():
        show_licence(trained.licence, Console())


def _show(title: str, figures: Mapping[str, Any]) -> None:
    """Print the figures of a finished job, one per line; only once under a launcher."""
    from training.data.runs import is_main_process

    if not is_main_process():
        return
    console = Console()
    console.print(f"[bold]{title}[/bold]")
    for name, value in figures.items():
        shown = f"{value:,.4g}" if isinstance(value, float) else str(value)
        console.print(f"  {name}: {escape(shown)}", highlight=False)


if __name__ == "__main__":
    app()
