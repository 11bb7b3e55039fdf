"""A task to learn in seconds: echo the asked color."""

from pathlib import Path

from qguide.qnet.types import Message
from qguide.training.architecture import Architecture
from qguide.training.data.runs import JsonlWriter, open_run
from qguide.training.data.trajectories import Trajectory
from qguide.training.optimization.options import Optimization
from qguide.training.policy_training.options import SftConfig
from qguide.training.q_training.options import TrainQNetConfig
from tests.support.decision_groups import candidate, groups_row
from tests.support.labels import labelled, row_of

TINY = Architecture(vocab_size=320, hidden_size=32, intermediate_size=64, layers=2, heads=2, context=128)


def episode(color: str) -> tuple[Message, ...]:
    return (Message("user", f"Say {color}."), Message("assistant", f"Action: {color}"))


def trajectories_in(folder: Path) -> Path:
    """Forty episodes of an expert."""
    with open_run(folder, Architecture()) as run, JsonlWriter(run.rows) as rows:
        for number in range(40):
            rows.write(
                Trajectory(
                    task_id=f"t{number}",
                    kind="say",
                    environment="echo",
                    messages=episode(("red", "blue")[number % 2]),
                    reward=1.0,
                    source="expert",
                ).to_row()
            )
    return run.path


def labels_in(folder: Path, numbers: range = range(40)) -> Path:
    """Trees in which echoing the asked color is worth 1 and the other one 0."""
    with open_run(folder, Architecture()) as run, JsonlWriter(run.rows) as rows:
        for number in numbers:
            asked = ("red", "blue")[number % 2]
            chats = [(episode(asked)[0], episode(said)[1]) for said in ("red", "blue")]
            labels = {1: float(asked == "red"), 2: float(asked == "blue")}
            tree = labelled(*chats, labels=labels, rewards=list(labels.values()), task_id=f"t{number}")
            rows.write(row_of(tree))
    return run.path


def groups_in(folder: Path, numbers: range) -> Path:
    """Episodes of one decision: echoing the asked color ends it well, the other one badly."""
    with open_run(folder, Architecture()) as run, JsonlWriter(run.rows) as rows:
        for number in numbers:
            asked = ("red", "blue")[number % 2]
            said = [
                candidate(
                    f"Action: {color}",
                    (float(color == asked), 1),
                    observation="Right." if color == asked else "Wrong.",
                    reward=float(color == asked),
                    terminated=True,
                    valid=color == asked,
                )
                for color in ("red", "blue")
            ]
            decision = said, number % 3 % 2
            rows.write(groups_row(decision, task_id=f"g{number}", first_observation=f"Say {asked}."))
    return run.path


def sft_config(trajectories: Path, output: Path, **changes: object) -> SftConfig:
    """A training that learns the task by heart."""
    fields: dict[str, object] = {
        "trajectories": (trajectories,),
        "output": output,
        "architecture": TINY,
        "optimization": Optimization(
            optimizer="muon", lr=5e-3, muon_lr=0.02, epochs=30, batch_tokens=90, micro_batch_tokens=100
        ),
    }
    return SftConfig.model_validate(fields | changes)


def qnet_config(folder: Path, policy: Path, **changes: object) -> TrainQNetConfig:
    """A short training on decision groups."""
    fields: dict[str, object] = {
        "groups": (groups_in(folder / "groups", range(30)),),
        "held_back_groups": (groups_in(folder / "held_back", range(90, 96)),),
        "trunk": policy,
        "output": folder / "qnet",
        "head_width": 32,
        "loss_on": "last",
        "ranking_weight": 1.0,
        "validation_fraction": 0.0,
        "optimization": {"lr": 3e-3, "epochs": 6, "batch_tokens": 300, "micro_batch_tokens": 300},
    }
    return TrainQNetConfig.model_validate(fields | changes)
