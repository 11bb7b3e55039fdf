"""Scale benchmark: how time and cost grow with tasks and replicas, simulated from a step's cost."""

import json
from collections.abc import Callable, Iterator
from typing import Final

from pydantic import ValidationError

from benchmarks.measurement.measure import describe_machine
from benchmarks.scale.config import SCENARIOS, ScaleBench, ScaleRow, ScaleRun, Scenario, StepCosts
from benchmarks.scale.simulation import ASSUMPTIONS, Outcome, Scene, Simulation
from benchmarks.scale.step_costs import measure_costs
from qguide.qnet.errors import ConfigError

_HALF_WAY: Final = 0.5

Advance = Callable[[str], None]


def sizes(config: ScaleBench) -> list[tuple[int, int]]:
    """Numbers of tasks and replicas to simulate, small ones first."""
    return [(tasks, replicas) for tasks in config.tasks for replicas in config.replicas]


def scale_bench(config: ScaleBench, *, advance: Advance = lambda _: None) -> ScaleRun:
    """Measure or read the costs, and simulate every size; an interrupted run is not complete.

    Args:
        advance: called with a description before the costs and before each size.

    Raises:
        ConfigError: the file of costs cannot be read.
    """
    advance("costs of a step")
    costs = read_costs(config) or measure_costs(episodes=config.measured_episodes, threads=config.threads)
    measured = None if config.costs else describe_machine(device="cpu", threads=config.threads)
    run = ScaleRun(
        complete=False,
        command=config.command,
        machine=measured,
        costs=costs,
        assumptions=ASSUMPTIONS,
        **config.model_dump(include={"episodes_per_replica", "cache_tokens", "seeds"}),
    )
    try:
        for tasks, replicas in sizes(config):
            advance(f"{tasks:,} tasks, {replicas} replicas")
            run = run.model_copy(update={"rows": (*run.rows, *simulate(config, costs, tasks, replicas))})
        run = run.model_copy(update={"complete": True})
    finally:
        config.output.write_text(run.model_dump_json(indent=1) + "\n")
    return run


def read_costs(config: ScaleBench) -> StepCosts | None:
    """The costs of a file, alone or in a result of this command; None if none is named.

    Raises:
        ConfigError: the file cannot be read, or holds something else.
    """
    if config.costs is None:
        return None
    try:
        found = json.loads(config.costs.read_text(encoding="utf-8"))
        return StepCosts.model_validate(found.get("costs", found))
    except (OSError, ValueError, AttributeError, ValidationError) as error:
        raise ConfigError(
            f"{config.costs} holds no costs of a step: {error}; write the fields of StepCosts, or "
            "leave the option out to measure the embedded models"
        ) from error


def simulate(config: ScaleBench, costs: StepCosts, tasks: int, replicas: int) -> Iterator[ScaleRow]:
    """The rows of all scenarios that are possible with so many replicas."""
    ends_s: dict[int, float] = {}
    for scenario in SCENARIOS:
        if scenario == "a replica dies" and replicas < 2:
            continue
        outcomes = []
        for seed in range(config.seed, config.seed + config.seeds):
            dies_at_s = _HALF_WAY * ends_s[seed] if scenario == "a replica dies" else None
            scene = Scene(
                scenario=scenario,
                tasks=tasks,
                replicas=replicas,
                open_episodes=replicas * config.episodes_per_replica,
                cache_tokens=config.cache_tokens,
                seed=seed,
                dies_at_s=dies_at_s,
            )
            outcome = Simulation(scene, costs).run()
            if scenario == "hashed":
                ends_s[seed] = outcome.wall_s
            outcomes.append((outcome.wall_s, dies_at_s, outcome))
        outcomes.sort(key=lambda each: each[0])
        _, dies_at_s, middle = outcomes[len(outcomes) // 2]
        yield _row(
            scenario,
            tasks,
            middle,
            unpaid_s=0.0 if dies_at_s is None else max(0.0, middle.wall_s - dies_at_s),
            walls_s=(outcomes[0][0], outcomes[-1][0]),
        )


def _row(
    scenario: Scenario, tasks: int, outcome: Outcome, *, unpaid_s: float, walls_s: tuple[float, float]
) -> ScaleRow:
    replicas, busy_s = len(outcome.busy_s), sum(outcome.busy_s)
    return ScaleRow(
        scenario=scenario,
        tasks=tasks,
        replicas=replicas,
        wall_s=outcome.wall_s,
        least_wall_s=walls_s[0],
        most_wall_s=walls_s[1],
        replica_s=replicas * outcome.wall_s - unpaid_s,
        busy_s=busy_s,
        imbalance=max(outcome.busy_s) * replicas / busy_s,
        read_share=outcome.read_tokens / outcome.history_tokens,
        returned_share=outcome.returned / max(1, outcome.later_steps),
        resent=outcome.resent,
        environments=outcome.environment_s / outcome.wall_s,
    )
