"""Jobs: each has a TOML file, and nearly all write a run folder and may be a pipeline's stage.

A new job is one entry here: the commands of `qguide`, the stages of pipelines and
docs/reference/jobs.md are made from this table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Literal

from pydantic import BaseModel

from qguide.jobs.options import CHOOSE, EVALUATE, EXPORT_DATA, IMPORT, LEARN, Option
from qguide.qnet.errors import ConfigError
from qguide.qnet.packages import import_named, plugins, raised_text

Group = Literal["Recordings", "Data", "Training", "Evaluation"]


@dataclass(frozen=True, slots=True)
class Job:
    """A job.

    Attributes:
        name: its command, such as "train-qnet".
        config: import path of its configuration class.
        group: heading of the help that it stands under.
        options: fields that are options of their own.
        prints: import path of the function that prints the result; empty where the job prints it
            itself; None prints its figures.
        runs: the module of the function `run_NAME`, which takes the configuration; empty where it is
            that of the class. Where it imports torch they are two, so that a plan does not wait for it.
        stage: may be a stage of a pipeline; its output is a run folder.
    """

    name: str
    config: str
    group: Group
    help: str
    options: tuple[Option, ...] = ()
    prints: str | None = None
    runs: str = ""
    stage: bool = True

    @property
    def module(self) -> str:
        """Dotted name of the module that says what it does, and does it."""
        return self.runs or self.config.partition(":")[0]

    def config_type(self) -> type[BaseModel]:
        """The class that validates the configuration."""
        found: type[BaseModel] = import_named(self.config)
        return found

    def function(self) -> Callable[[Any], Any]:
        """The function that runs the job."""
        run = f"run_{self.name.replace('-', '_')}"
        found: Callable[[Any], Any] = getattr(import_module(self.module), run)
        return found


_ALL: Final = (
    Job(
        "import",
        "qguide.training.jobs.import_episodes:ImportConfig",
        "Recordings",
        "Import recorded episodes of any agent, and report what can be learned from them.",
        options=IMPORT,
        prints="qguide.training.recordings.report:show_report",
    ),
    Job(
        "learn",
        "qguide.training.jobs.learn:LearnConfig",
        "Recordings",
        "Learn a Q model from recorded episodes in seconds, without a network, and judge it.",
        options=LEARN,
        prints="",
    ),
    Job(
        "export-data",
        "qguide.training.jobs.export_data:ExportConfig",
        "Recordings",
        "Export records to TRL's dataset formats, to ATIF or to parquet.",
        options=EXPORT_DATA,
        stage=False,
    ),
    Job(
        "collect",
        "qguide.training.jobs.collect:CollectConfig",
        "Data",
        "Collect trajectories of an expert, or a policy's own successes, for behaviour cloning.",
    ),
    Job(
        "explore",
        "qguide.training.jobs.explore:ExploreConfig",
        "Data",
        "Grow exploration trees with a policy (QLASS algorithm 2).",
    ),
    Job(
        "label",
        "qguide.training.jobs.label:LabelConfig",
        "Data",
        "Label the nodes of exploration trees with Q-values (QLASS algorithm 3).",
    ),
    Job(
        "groups",
        "qguide.training.jobs.groups:GroupsConfig",
        "Data",
        "Build decision groups: value each candidate of played episodes by playing on.",
    ),
    Job(
        "rro",
        "qguide.training.jobs.rro:RroConfig",
        "Data",
        "Preference pairs by reward rising sampling (RRO algorithm 1).",
    ),
    Job(
        "ipr",
        "qguide.training.jobs.ipr:IprConfig",
        "Data",
        "Preference pairs of an agent's mistakes along expert trajectories (IPR).",
    ),
    Job(
        "pairs",
        "qguide.training.jobs.pairs:PairsConfig",
        "Data",
        "Preference pairs from decision groups, exploration trees and episodes.",
    ),
    Job(
        "paraphrase",
        "qguide.training.jobs.paraphrase:ParaphraseConfig",
        "Data",
        "Paraphrase tasks, for methods that draw candidates in other words (Q*Agent-I-aug).",
    ),
    Job(
        "sft",
        "qguide.training.policy_training.options:SftConfig",
        "Training",
        "Train a policy on trajectories (behaviour cloning).",
        runs="qguide.training.jobs.sft",
    ),
    Job(
        "train-qnet",
        "qguide.training.q_training.options:TrainQNetConfig",
        "Training",
        "Train a Q model on labelled trees and decision groups.",
        runs="qguide.training.jobs.train_qnet",
    ),
    Job(
        "train-dpo",
        "qguide.training.policy_training.options:TrainDpoConfig",
        "Training",
        "An implicit Q from preference pairs (StepQ): step-level or trajectory-level DPO.",
        runs="qguide.training.jobs.train_dpo",
    ),
    Job(
        "train-simpo",
        "qguide.training.policy_training.options:TrainSimpoConfig",
        "Training",
        "A policy from preference pairs, without a reference: step-level SimPO.",
        runs="qguide.training.policy_training.simpo",
    ),
    Job(
        "train-policy",
        "qguide.training.policy_training.options:TrainPolicyConfig",
        "Training",
        "Improve a policy by the values of its own candidates: group-relative optimization (GRPO).",
        runs="qguide.training.jobs.train_policy",
    ),
    Job(
        "evaluate",
        "qguide.training.jobs.evaluate:EvaluateConfig",
        "Evaluation",
        "Evaluate guidance and baselines on the same tasks, seeds and candidates.",
        options=EVALUATE,
        prints="",
    ),
    Job(
        "choice-regret",
        "qguide.training.jobs.choice_regret:ChoiceRegretConfig",
        "Evaluation",
        "Measure the regret of a Q model's choices on decision groups; no episodes are played.",
    ),
    Job(
        "choose",
        "qguide.training.licence.choose:ChooseConfig",
        "Evaluation",
        "Choose among Q models, and their sum, by their regret on held-back decisions; write the best one.",
        options=CHOOSE,
        prints="",
    ),
    Job(
        "choose-recorded",
        "qguide.training.choosing.options:ChooseRecordedConfig",
        "Evaluation",
        "Choose among what real LLMs did by rules, votes and a small Q model that it trains.",
        runs="qguide.training.choosing.choose_recorded",
    ),
)

JOBS: Final = {job.name: job for job in _ALL}


def find_job(name: str) -> Job:
    """The job of a name, ours or an installed package's, or of `my_package.jobs:JOB`."""
    path = name if name in JOBS or ":" in name else plugins("jobs").get(name, name)
    if ":" not in path:
        if name not in JOBS or not JOBS[name].stage:
            known = ", ".join(job.name for job in _ALL if job.stage)
            raise ConfigError(f"job {name!r} is unknown; name one of {known}, or package.module:JOB")
        return JOBS[name]
    try:
        job = import_named(path)
    except Exception as error:  # whatever the module of others raises
        raise ConfigError(f"job {name!r} cannot be imported: {raised_text(error)}") from error
    if not isinstance(job, Job):
        raise ConfigError(f"{name} is no job; name a variable that holds a `qguide.jobs.table.Job`")
    return job
