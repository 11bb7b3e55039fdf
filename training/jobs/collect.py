"""Collect trajectories for behaviour cloning, from an expert or from a policy's own successes.

    qguide collect --config training/configs/alfworld/collect.toml

plays the environment's expert and writes its episodes, trees of one path each. Tasks whose episode
is not kept are listed in `skipped.jsonl`, so that a resumed run does not play them again.

With a `policy` it collects as DAgger does (Ross et al., 2011): the policy plays some of the steps,
so that the expert's replies include those to states that the policy reaches. With
`player = "policy"` the policy plays alone and no expert is needed:

    only_won = true     its successes, for rejection sampling fine-tuning (RFT; STaR)
    only_won = false    all of its episodes, for AgentEvol and the pairs of ETO
    qnet                the episodes that a Q model guides, for self-training (Q*Agent-ST)

With `player = "gold"` it plays the solutions that an environment has on record instead of an
expert's replies.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from qguide.qnet.decision.selection import SelectionName
from qguide.qnet.records import TreeRow
from qguide.qnet.types import Candidate, History, SampleRequest, Sampling
from qguide.training.algorithms.tree import EXPERT
from qguide.training.data.runs import JsonlWriter, finished_task_ids
from qguide.training.data.trajectories import Trajectory
from qguide.training.environment import Expert, ExpertBuilder, GoldSuite, Task
from qguide.training.evaluation.methods import Play, q_guided
from qguide.training.rollouts.episode import Agent, AgentStep, Episode, derived_seed, first_reply, seeded
from qguide.training.rollouts.harness import PlayableTask, Rollouts
from qguide.training.rollouts.method import JobModels, Method, MethodConfig, PlayedTask, play_job
from qguide.training.rollouts.models import check_selection, expert_builder, prior_in_use
from qguide.training.rollouts.rollout import EnvironmentCall, ModelRequest, RolloutTask
from qguide.training.trajectory import text_reply


class CollectConfig(MethodConfig):
    """Configuration of `qguide collect`.

    Attributes:
        max_steps: actions after which an episode is cut off.
        only_won: keep only trajectories that succeed by the environment's criterion.
        mistakes: probability that the expert makes a plausible mistake in place of its reply. SFT
            does not imitate the mistake, but learns the expert's way back from it.
        player: "expert", "gold" for solutions that the environment has on record, or "policy" for
            episodes of the policy alone.
        policy: "embedded", a policy's folder, "upstream:NAME", an address with "#" and a model,
            "random" or "scripted", which need no model; "" for none. Beside the expert it plays
            some of the steps, which SFT imitates only if the expert's reply is the same.
        policy_share: probability that the policy plays a step beside the expert.
        qnet: "embedded" or the folder of a Q model that guides the policy's own episodes; "" for
            none.
        candidates: M, the number of candidates per step of a guided episode.
        selection: "argmax" of Q, or "posterior", Q / tau + log prior; None plays as a server would: the
            posterior that was fitted with the Q model, or the argmax for one without.
        tau: temperature of Q in the posterior; None is the fitted one, or 0.05.
        greedy_candidate: draw the first candidate of a guided step greedily.
        explored: share of the guided steps that take a random candidate, so that episodes to learn
            from hold more than the Q model's own choices.
        attempts: maximum number of the policy's own episodes per task.
        keep: number of a task's kept episodes after which it gets no more attempts.
        temperature: sampling temperature of the policy.
        max_tokens: maximum number of completion tokens in one of the policy's actions.
        seed: seed of the mistakes and of the policy's draws.
    """

    policy_fields = ("policy",)
    q_field = "qnet"

    max_steps: int = Field(default=40, ge=1)
    only_won: bool = True
    mistakes: float = Field(default=0.0, ge=0, lt=1)
    player: Literal["expert", "gold", "policy"] = "expert"
    policy: str = ""
    policy_share: float = Field(default=0.5, gt=0, le=1)
    qnet: str = ""
    candidates: int = Field(default=3, ge=1)
    selection: SelectionName | None = None
    tau: float | None = Field(default=None, ge=0)
    greedy_candidate: bool = False
    explored: float = Field(default=0.0, ge=0, le=1)
    attempts: int = Field(default=1, ge=1)
    keep: int = Field(default=1, ge=1)
    temperature: float = Field(default=0.7, ge=0)
    max_tokens: int = Field(default=128, ge=1)
    parallel: int = Field(default=4, ge=1)

    @model_validator(mode="after")
    def _collect_fields_agree(self) -> Self:
        if self.policy == EXPERT:
            raise ValueError(
                "policy is 'expert', but the expert plays anyway; name a model's folder, or set "
                "mistakes for plausible mistakes of the expert"
            )
        if self.policy and self.mistakes:
            raise ValueError(
                f"policy is {self.policy!r} and mistakes {self.mistakes}; a policy makes mistakes "
                "of its own, so set mistakes to 0"
            )
        if self.player == "policy" and not self.policy:
            raise ValueError("player is 'policy', but there is no policy; name one")
        if self.player == "gold" and (self.policy or self.mistakes):
            raise ValueError(
                f"player is 'gold', policy {self.policy!r} and mistakes {self.mistakes}; a "
                "solution on record says how to go on after nothing else, so leave out both"
            )
        if self.attempts > 1 and (self.player != "policy" or self.temperature == 0):
            raise ValueError(
                f"attempts is {self.attempts}, player {self.player!r} and temperature "
                f"{self.temperature}; only a policy at a temperature above 0 plays a task "
                "differently again, so set attempts to 1"
            )
        if self.keep > self.attempts:
            raise ValueError(
                f"keep is {self.keep} and attempts {self.attempts}; a task cannot keep more "
                "episodes than it plays, so raise attempts"
            )
        if self.qnet and (self.player != "policy" or self.temperature == 0):
            raise ValueError(
                f"qnet is {self.qnet!r}, player {self.player!r} and temperature "
                f"{self.temperature}; a Q model chooses between draws of a policy, so set player "
                "to 'policy' and temperature above 0, or leave out qnet"
            )
        if self.explored and not self.qnet:
            raise ValueError(f"explored is {self.explored}, but no Q model chooses; name a qnet, or set it to 0")
        check_selection(self.selection, self.tau, q_field="qnet", q_name=self.qnet)
        return self


SKIPPED = "skipped.jsonl"


class Collect(Method[CollectConfig]):
    """Plays each task until enough of its episodes are kept."""

    job, unit, rate = "collect", "tasks", "episodes"

    def __init__(self, config: CollectConfig, run: Rollouts, models: JobModels) -> None:
        super().__init__(config, run, models)
        self._build_expert: ExpertBuilder | None = None
        self._gold: GoldSuite | None = None
        match config.player:
            case "expert":
                self._build_expert = expert_builder(config.environment)
            case "gold":
                self._gold = run.suite.require_gold()
        self._prior = prior_in_use(config.qnet, config.selection, config.tau) if config.qnet else None
        self._skipped = JsonlWriter(run.folder.path / SKIPPED)

    @property
    def source(self) -> str:
        """The policy if it plays alone."""
        return super().source if self.config.player == "policy" else EXPERT

    def finished(self) -> set[str]:
        """Ids of the tasks that have a row, or of which no episode is kept."""
        folder = self.run.folder
        return finished_task_ids(folder.rows) | finished_task_ids(folder.path / SKIPPED)

    def play(self, playable: PlayableTask) -> RolloutTask[PlayedTask]:
        """Play one task."""
        task, config, won, steps = playable.task, self.config, 0, 0
        rows: list[TreeRow] = []
        gold: Sequence[str] = ()
        if self._gold is not None:
            gold = yield EnvironmentCall(partial(self._gold.gold_replies, task))
        max_steps = min(config.max_steps, len(gold) or config.max_steps)
        for attempt in range(config.attempts):
            agent = replaying_agent(gold) if gold else self._agent(task, attempt)
            episode = yield from playable.game(config.seed).play(agent, max_steps=max_steps)
            wins = playable.environment.is_success(episode.reward, episode.terminated)
            won += wins
            steps += len(episode.steps)
            if wins or not config.only_won:
                name = config.environment.name
                found = trajectory_of(task, name, episode, source=self.source)
                rows.append(found.to_row(completion_tokens=episode.completion_tokens))
            if len(rows) == config.keep or self.run.budget.reason:
                break
        if not rows and not self.run.budget.reason:
            self._skipped.write({"task_id": task.id, "reward": episode.reward})
        counts = {"episodes": attempt + 1, "won": won, "kept": len(rows), "steps": steps}
        return PlayedTask(rows, counts)

    def note(self, summary: Mapping[str, float]) -> str:
        """See `Method`."""
        return f"{summary['won']:.0f}/{summary['episodes']:.0f} won"

    def close(self) -> None:
        """See `Method`."""
        self._skipped.close()

    def _agent(self, task: Task, attempt: int) -> Agent:
        config = self.config
        seed = derived_seed(config.seed, task.id) + attempt
        sampling = Sampling(config.temperature, config.max_tokens)
        if config.qnet:  # the seed of `evaluate`, which plays the same episode
            play = Play(config.candidates, sampling, config.greedy_candidate)
            return q_guided(play, config.seed + attempt, task.id, explored=config.explored, prior=self._prior)
        if self._build_expert is None:
            return first_reply(seeded(sampling, seed))
        expert = self._build_expert()
        if not config.policy:
            return expert_agent(expert, mistakes=config.mistakes, seed=seed)
        share = config.policy_share
        return corrected_agent(expert, policy_share=share, sampling=sampling, seed=seed)


run_collect = partial(play_job, Collect)


def trajectory_of(task: Task, environment: str, episode: Episode, *, source: str) -> Trajectory:
    """A played episode as a chat."""
    rewards, drawn = ([step.reward for step in episode.steps], [s.drawn for s in episode.steps])
    return Trajectory(
        messages=episode.messages,
        reward=episode.reward,
        task_id=task.id,
        kind=task.kind,
        environment=environment,
        terminated=episode.terminated,
        source=source,
        mistakes=tuple(i for i, choice in enumerate(episode.choices) if choice.mistaken),
        drawn=tuple(drawn) if any(drawn) else (),
        # Rewards add up along a tree's path, so those on the way are a column.
        earned=tuple(rewards) if any(rewards[:-1]) else (),
    )


def expert_agent(expert: Expert, *, mistakes: float, seed: int) -> Agent:
    """An agent that plays the expert's replies and asks no model."""
    rng = Random(seed)

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        yield from ()
        reply = expert.reply(history[-1].content)
        if rng.random() < mistakes:
            return AgentStep(text_reply(expert.deviate(rng)), completion_tokens=0, mistaken=True)
        return AgentStep(text_reply(reply), completion_tokens=0)

    return choose


def replaying_agent(replies: Sequence[str]) -> Agent:
    """An agent that plays known replies and asks no model; it has none after the last."""

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        yield from ()
        return AgentStep(text_reply(replies[step]), completion_tokens=0)

    return choose


def corrected_agent(expert: Expert, *, policy_share: float, sampling: Sampling, seed: int) -> Agent:
    """An agent that plays the expert's replies at some steps and the policy's at the others.

    Args:
        policy_share: probability that the policy plays a step. Its reply counts as a mistake
            unless it equals the expert's word for word.
    """
    rng = Random(seed)

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        wanted = expert.reply(history[-1].content)
        if rng.random() >= policy_share:
            return AgentStep(text_reply(wanted), completion_tokens=0)
        drawn = replace(sampling, seed=derived_seed(seed, step))
        candidates: list[Candidate] = yield SampleRequest(history, 1, drawn)
        reply = candidates[0].message
        expert.follow(reply.text)
        mistaken = reply.text != wanted
        return AgentStep(reply, candidates[0].completion_tokens, mistaken=mistaken)

    return choose
