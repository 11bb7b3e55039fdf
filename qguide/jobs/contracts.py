"""Contracts of what a package brings beside environments and scorers (`qguide plugin check`).

Each kind is tried as our own code uses it: a label target on trees of corridors, a method in
episodes of theirs with the embedded models, a format on a recording and a job on a file of its own.
"""

import hashlib
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from qguide.jobs.table import JOBS, Job, find_job
from qguide.qnet.contract import Check, Finding, NotCheckedError, findings_of, require
from qguide.qnet.errors import ConfigError
from qguide.qnet.packages import plugins
from qguide.qnet.records import TaskRow
from qguide.training.algorithms.backups import sibling_groups
from qguide.training.algorithms.tree import Tree, merge_branch
from qguide.training.configs.job_files import load_config
from qguide.training.data.records import tree_row
from qguide.training.data.row_files import ROWS
from qguide.training.data.task_trees import TaskTree
from qguide.training.data.trajectories import Trajectory
from qguide.training.environment import take
from qguide.training.environments.corridor import Corridor, CorridorConfig, CorridorEnvironment, CorridorSuite
from qguide.training.evaluation.methods import Play, method_of
from qguide.training.evaluation.results import EPISODES
from qguide.training.jobs.label import LabelConfig, labels_of
from qguide.training.recordings.fields import Fields
from qguide.training.recordings.formats.read import layout_named, read_episodes, recording_of
from qguide.training.rollouts.driver import run_together
from qguide.training.rollouts.episode import Agent, AgentStep, Episode
from qguide.training.rollouts.game import Game
from qguide.training.rollouts.models import EMBEDDED, Inference, build_policy, build_scorer
from qguide.training.rollouts.rollout import ModelRequest, SampleRequests, answered_by
from qguide.training.trajectory import Step, react_reply

PluginKind = Literal["formats", "jobs", "labels", "methods"]
_TASKS = 4
_MAX_STEPS = 3


class _Target:
    """A label target with small trees of corridors: the shortest way, detours, and failures."""

    def __init__(self, name: str, source: Path | None) -> None:
        if name in ("judge", "mcts"):
            raise ConfigError(f"target {name!r} is read from what a tree recorded; name one that is computed")
        given = {"trees": ["trees"], "output": "labels", "target": name, "gae_lambda": 1.0}
        config = load_config(LabelConfig, None, options=given)
        self.labels: Callable[[TaskTree], Mapping[int, float]] = partial(labels_of, config=config)
        self.trees = [_tree_of(seed) for seed in range(_TASKS)]


def _tree_of(seed: int, *, failing: bool = False) -> TaskTree:
    corridor = Corridor.of_seed(seed)
    best = corridor.solution()
    tree = Tree(CorridorEnvironment(corridor).reset())
    for actions in (("look", "go left"), *(() if failing else (best, ("look", *best), (*best[:1], "look", *best[1:])))):
        tree, _ = merge_branch(tree, _steps(corridor, actions), source="contract")
    task = TaskRow(task_id=f"corridor:{seed}", kind=corridor.kind, environment="fake")
    return TaskTree(tree_row(tree, task), tree)


def _steps(corridor: Corridor, actions: tuple[str, ...]) -> list[Step]:
    steps = list[Step]()
    with closing(CorridorEnvironment(corridor)) as environment:
        environment.reset()
        for action in actions:
            result = take(environment, action)
            reply = react_reply("", action)
            steps.append(Step(reply, result.observation, result.reward, result.terminated, result.valid))
            if result.ended:
                break
    return steps


def _labels_are_finite(subject: _Target) -> None:
    for tree in subject.trees:
        require(bool(subject.labels(tree)), f"no node of {tree.row.task_id} has a label")


def _failures_are_labelled(subject: _Target) -> None:
    subject.labels(_tree_of(0, failing=True))


def _labels_stay(subject: _Target) -> None:
    once, again = (dict(subject.labels(subject.trees[0])) for _ in range(2))
    require(once == again, f"the same tree has the labels {once}, then {again}")


def _labels_differ(subject: _Target) -> None:
    for task in subject.trees:
        labels = subject.labels(task)
        for group in sibling_groups(task.tree):
            found = [labels[node] for node in group if node in labels]
            if any(one != other for one, other in pairwise(found)):
                return
    require(False, f"in {_TASKS} trees all actions after one state have one label")


_LABELS = (
    Check(
        "it is a function of one tree that gives labels by the ids of its nodes",
        _labels_are_finite,
        "take a `Tree`, and return a dictionary from ids of `tree.nodes` to finite numbers",
    ),
    Check(
        "a tree without any success is labelled, too",
        _failures_are_labelled,
        "let a node be labelled, or left out, where no path reaches the goal",
    ),
    Check("the same tree has the same labels", _labels_stay, "take randomness and state between calls out of it"),
    Check(
        "actions after one state differ in their labels",
        _labels_differ,
        "let the label depend on what came of the action; one that is the same for all teaches no choice",
    ),
)


class _Playing:
    """A method of evaluation with the embedded models; each step's reply is kept with what was drawn for it."""

    def __init__(self, name: str, source: Path | None) -> None:
        self.method, self.options = method_of(plugins("methods").get(name, name)), Play(max_steps=_MAX_STEPS)
        self.suite = CorridorSuite(count=_TASKS)
        self.policy = build_policy(EMBEDDED, Inference(), CorridorConfig())
        self.scorer = build_scorer(EMBEDDED, Inference())
        self.costs: list[tuple[int, int, AgentStep]] = []

    def play(self, seed: int) -> Episode:
        """An episode of the first task; its costs are kept."""
        task = self.suite.tasks[0]
        agent = self._counted(self.method(self.options, seed, task.id))
        play = Game(partial(self.suite.make, task)).play(agent, max_steps=_MAX_STEPS)
        [episode] = run_together([play], policy=self.policy, scorer=self.scorer)
        return episode

    def _counted(self, agent: Agent) -> Agent:
        def choose(history: Any, step: int) -> Generator[ModelRequest, Any, AgentStep]:
            drawn = read = 0

            def answer_to(request: ModelRequest) -> Generator[ModelRequest, Any, Any]:
                nonlocal drawn, read
                answer = yield request
                if not isinstance(answer, list):
                    read += answer.computed_tokens
                    return answer
                several = answer if isinstance(request, SampleRequests) else [answer]
                drawn += sum(candidate.completion_tokens for drawing in several for candidate in drawing)
                return answer

            taken = yield from answered_by(agent(history, step), answer_to)
            require(isinstance(taken, AgentStep), f"the agent returns {taken!r}, no AgentStep")
            self.costs.append((drawn, read, taken))
            return taken

        return choose


def _agent_plays(subject: _Playing) -> None:
    episode = subject.play(0)
    for number, choice in enumerate(episode.choices):
        role = choice.message.role
        require(role == "assistant", f"the reply of step {number} is a message of the {role}")


def _seed_decides(subject: _Playing) -> None:
    first, _, again = (subject.play(seed).messages for seed in (0, 1, 0))
    require(first == again, "the same seed plays another episode after an episode of another seed")


def _tokens_count(subject: _Playing) -> None:
    if not subject.costs:
        raise NotCheckedError("no step was played")
    for drawn, _, choice in subject.costs:
        told = choice.completion_tokens
        require(told == drawn, f"a step drew {drawn} completion tokens and tells {told}")


def _reading_counts(subject: _Playing) -> None:
    if not subject.costs:
        raise NotCheckedError("no step was played")
    for _, read, choice in subject.costs:
        told = choice.scored_tokens
        require(told == read, f"a step had the Q model read {read} tokens and tells {told} as scored_tokens")


_METHODS = (
    Check(
        "it is a function of (play, seed, task_id) that gives an agent, which plays an episode",
        _agent_plays,
        "return a generator function of (history, step) that yields requests and returns an AgentStep",
    ),
    Check(
        "the seed and the task decide the episode",
        _seed_decides,
        "draw with `seeded(play.drawing, seed, task_id)`, and keep state in the agent, not in the module",
    ),
    Check(
        "a step tells the completion tokens of all that it drew",
        _tokens_count,
        "sum `completion_tokens` over all candidates, those not taken included; costs are compared by them",
    ),
    Check(
        "a step tells the tokens that the Q model read for it",
        _reading_counts,
        "sum `computed_tokens` of the answers to all `ScoreRequest`s into `scored_tokens`",
    ),
)


class _Format:
    """A format with a recording in it."""

    def __init__(self, name: str, source: Path | None) -> None:
        self.name, self.layout, self.source = name, layout_named(name), source
        if source is not None:
            recording_of(source, name)  # a source that is not there is no fault of the format

    def episodes(self, *, default_reward: float | None = 0.0) -> list[Any]:
        """Episodes and bad records of the recording; `default_reward` is that of one without a reward."""
        if self.source is None:
            raise NotCheckedError("no recording is known; name a file or a folder by --source")
        fields = Fields(default_reward=default_reward)
        return list(read_episodes(recording_of(self.source, self.name), fields))


def _records_are_read(subject: _Format) -> None:
    found = subject.episodes()
    bad = [one for one in found if not isinstance(one, Trajectory)]
    require(not bad, f"{len(bad)} of {len(found)} hold no episode; the first: {bad and bad[0]}")
    require(bool(found), f"{subject.source} holds no record")


def _reading_stays(subject: _Format) -> None:
    require(subject.episodes() == subject.episodes(), "read twice, the recording has other episodes")


def _rewards_are_stated(subject: _Format) -> None:
    try:
        bad = [one for one in subject.episodes(default_reward=None) if not isinstance(one, Trajectory)]
        otherwise_bad = {(one.path, one.line) for one in subject.episodes() if not isinstance(one, Trajectory)}
        unstated = [one for one in bad if (one.path, one.line) not in otherwise_bad]
    except ConfigError as error:
        raise NotCheckedError(str(error)) from error
    if unstated:
        raise NotCheckedError(f"{len(unstated)} records state none; say it to `import`: {unstated[0]}")


def _others_are_refused(subject: _Format) -> None:
    if subject.layout.fragments:
        raise NotCheckedError("its records are single requests, of which other ones are left out")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "other.json"
        path.write_text('{"unrelated": 1}')
        episodes = [
            one
            for one in read_episodes(recording_of(path, subject.name), Fields(default_reward=0.0))
            if isinstance(one, Trajectory)
        ]
    require(not episodes, "a record of unrelated fields is read as an episode")


_FORMATS = (
    Check(
        "every record of the recording holds an episode",
        _records_are_read,
        "yield a record with `messages` of any dialect for each episode; skip none without a word",
    ),
    Check("the same recording has the same episodes", _reading_stays, "take randomness and state between calls out"),
    Check("episodes state their reward", _rewards_are_stated, "give `reward` beside `messages`"),
    Check(
        "a record of another shape is refused",
        _others_are_refused,
        "read the fields that make the format by their names (`record[...]`); a KeyError refuses the record",
    ),
)


class _Written:
    """A job, with a job file that runs in seconds."""

    def __init__(self, name: str, source: Path | None) -> None:
        self.job: Job = find_job(name)
        self.source = source
        if source is not None and not source.is_file():
            raise ConfigError(f"{source} is no file; name a file of the job by --source")
        with suppress(AttributeError, ImportError, NotCheckedError):  # a check tells what the job lacks
            self.config(Path("output"))  # a file that is not valid is no fault of the job

    def config(self, output: Path) -> Any:
        """The configuration of the job file, with another output."""
        if self.source is None:
            raise NotCheckedError("no job file is known; name one that runs in seconds by --source")
        options = {"output": str(output)} if self.has_output else {}
        return load_config(self.job.config_type(), self.source, options=options)

    @property
    def has_output(self) -> bool:
        """True if it writes a folder that its configuration names."""
        return "output" in self.job.config_type().model_fields


def _name_is_free(subject: _Written) -> None:
    ours = JOBS.get(subject.job.name, subject.job)
    require(ours == subject.job, f"{subject.job.name!r} is a job of ours")


def _parts_are_found(subject: _Written) -> None:
    require(callable(subject.job.function()), "its function is none")
    fields = [*subject.job.config_type().model_fields]
    require(subject.has_output or not subject.job.stage, f"a stage's configuration has no `output` among {fields}")


def _options_are_closed(subject: _Written) -> None:
    options = subject.job.config_type().model_config
    require(options.get("extra") == "forbid", "a field that it does not know is taken without a word")
    require(bool(options.get("frozen")), "the configuration can be changed while the job runs")


def _table_comes_back(subject: _Written) -> None:
    config = subject.config(Path("output"))
    again = type(config).model_validate(config.model_dump(mode="json"))
    require(again == config, f"{config} comes back as {again}")


def _job_resumes(subject: _Written) -> None:
    if not subject.has_output:
        raise NotCheckedError("its configuration has no `output`")
    with TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        written = []
        for _ in range(2):
            subject.job.function()(subject.config(output))
            written.append(_hashes(output))
    require(
        bool(written[0]) or not subject.job.stage, f"it writes neither {ROWS} nor {EPISODES} nor weights into `output`"
    )
    require(written[0] == written[1], "a second run changes what the first one wrote")


def _hashes(output: Path) -> dict[str, str]:
    names = (ROWS, EPISODES)
    kept = [path for path in sorted(output.rglob("*")) if path.name in names or path.suffix == ".safetensors"]
    return {str(path.relative_to(output)): hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}


_WRITTEN = (
    Check("its name is not that of another job", _name_is_free, "name it otherwise"),
    Check(
        "its configuration and its function are found",
        _parts_are_found,
        "let `config` be the import path of the class, and write `run_NAME` beside it, with _ for -",
    ),
    Check(
        "fields that it does not know are refused, and none changes",
        _options_are_closed,
        "derive the configuration from `qguide.training.options.JobOptions`",
    ),
    Check("the table is written as it is read", _table_comes_back, "let every field be one that JSON holds"),
    Check(
        "run again, it keeps what is there",
        _job_resumes,
        "open the output by `qguide.training.data.runs.open_run`, and leave out what has a row",
    ),
)

_CONTRACTS: Mapping[PluginKind, tuple[Callable[[str, Path | None], Any], tuple[Check[Any], ...]]] = {
    "formats": (_Format, _FORMATS),
    "jobs": (_Written, _WRITTEN),
    "labels": (_Target, _LABELS),
    "methods": (_Playing, _METHODS),
}


def check_plugin(kind: PluginKind, name: str, source: Path | None = None) -> list[Finding]:
    """Run the checks of a kind on what a name or an import path names; those that need a `source` only with one."""
    build, checks = _CONTRACTS[kind]
    return findings_of(checks, build(name, source))
