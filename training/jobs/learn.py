"""Learn a Q model without a network from recorded episodes, and judge it: seconds on one core.

    qguide learn runs/served --output runs/house

or with --config FILE, like every job. It reads what `import` reads, and run folders of
trajectories, trees and decision groups; writes a checkpoint with its licence. A killed run starts
over.
"""

import secrets
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field
from rich.console import Console

from qguide.qnet.errors import CheckpointError
from qguide.qnet.features.hashing import Hasher
from qguide.qnet.models.feature_q import load_feature_q, save_feature_q
from qguide.qnet.models.manifest import Manifest, PriorSection
from qguide.training.data.left_out import left_out_of
from qguide.training.data.runs import open_run
from qguide.training.learning.advantage import Options
from qguide.training.learning.episodes import HeldBack, LearnedEpisode, played_of
from qguide.training.learning.learner import Learned, judged_by, learn
from qguide.training.learning.sources import read_learnable
from qguide.training.licence.credit import FEWEST_EPISODES, FEWEST_UNITS
from qguide.training.licence.domain import fit_domain
from qguide.training.licence.verdict import judged_by_the_rest, licence_of, show_licence
from qguide.training.recordings.fields import Fields
from qguide.training.recordings.formats.read import Reading

_DEFAULTS = Options()


class LearnConfig(Reading):
    """Configuration of `qguide learn`, with the options of reading.

    Attributes:
        source: recordings in a format that `qguide import` reads, folders of them, and run folders
            of trajectories, trees or decision groups. Each path of a tree to a leaf is an episode;
            each candidate of a decision group is a way to end one, with the mean outcome of playing
            on.
        output: the folder to write.
        name: the name that the Q model is served under.
        environment: name of the environment, for recordings that name none.
        episodes: ids of those episodes of a server's recording that are learned from; empty: all.
        trace: lambda: 1 credits every step with the whole outcome, 0 with the next state's value.
        alpha: penalty of the squared weights of actions; None chooses it on held-back tasks.
        held_back: what is kept from the fits that judge the Q model: "tasks" tell what it is worth
            in new tasks, "episodes" what it is worth where the same tasks come again; "auto" takes
            episodes where there are fewer than 20 tasks.
        bits: weights have 2^bits places.
        salt: of the hashes, in hex; "" draws one, so that nobody can tell the words of a model, and keeps
            that of a model which the output holds already.
    """

    source: tuple[Path, ...] = Field(min_length=1)
    output: Path
    name: str = Field(default="features", min_length=1)
    environment: str = Field(default="imported", min_length=1)
    episodes: tuple[str, ...] = ()
    trace: float = Field(default=_DEFAULTS.trace, ge=0, le=1)
    alpha: float | None = Field(default=_DEFAULTS.alpha, gt=0)
    held_back: HeldBack | Literal["auto"] = _DEFAULTS.held_back
    bits: int = Field(default=20, ge=8, le=24)
    salt: str = Field(default="", pattern=r"^([0-9a-f]{2}){0,64}$")

    @property
    def fields(self) -> Fields:
        """The fields that the operator names, of the episodes that are learned from."""
        return replace(super().fields, episodes=frozenset(self.episodes))


def run_learn(config: LearnConfig, *, console: Console | None = None) -> Manifest:
    """Write the checkpoint and show its licence; its manifest says whether it may guide."""
    with open_run(config.output, config) as run:
        episodes = read_learnable(config.source, config.fields, format_=config.format, skip_bad=config.skip_bad)
        salt = bytes.fromhex(config.salt) or _salt_of(run.checkpoint)
        held_back = judged_by(episodes) if config.held_back == "auto" else config.held_back
        options = Options(trace=config.trace, alpha=config.alpha, held_back=held_back)
        learned = learn(episodes, options, Hasher(salt, bits=config.bits))
        manifest = _manifest(config, learned, episodes, held_back)
        states = [(episode.task, state) for episode in episodes for state in episode.states]
        domain = fit_domain(states, salt=salt.hex())
        saved = save_feature_q(run.checkpoint, learned.model, manifest, domain=domain)
    _show(saved, run.checkpoint, held_back, console or Console())
    return saved


def _salt_of(checkpoint: Path) -> bytes:
    """Salt of the model that was learned here before, so that the same run again learns the same; else a new one."""
    with suppress(CheckpointError):
        return load_feature_q(checkpoint)[0].hasher.salt
    return secrets.token_bytes(16)


def _show(manifest: Manifest, checkpoint: Path, held_back: HeldBack, console: Console) -> None:
    figures = manifest.metrics
    console.print(
        f"{figures['episodes']:,.0f} episodes of {figures['tasks']:,.0f} tasks, mean reward "
        f"{figures['mean_reward']:.3f} → {checkpoint}",
        markup=False,
        soft_wrap=True,
    )
    show_licence(manifest, console)
    if hint := _hint(manifest, held_back):
        console.print(hint, markup=False, soft_wrap=True)


def _hint(manifest: Manifest, held_back: HeldBack) -> str:
    """The lack that no further episode of the same kind would mend; "" if none is known."""
    labels, figures, licence = manifest.label_range, manifest.metrics, manifest.licence
    if labels and labels[0] == labels[1]:
        return (
            f"every episode ended with {labels[0]:g}, so nothing tells good actions from bad ones: grade the outcome, "
            "or record tasks of which some succeed and some fail"
        )
    few = held_back == "tasks" and figures["tasks"] < FEWEST_UNITS and figures["episodes"] >= FEWEST_EPISODES
    if few and licence and not licence.granted:
        return (
            f"{figures['tasks']:,.0f} tasks are too few to tell what it is worth in new ones; if your agent gets the "
            "same tasks again and again, --set held_back=episodes tells what it is worth there"
        )
    return ""


def _manifest(config: LearnConfig, learned: Learned, episodes: list[LearnedEpisode], held_back: HeldBack) -> Manifest:
    rewards = [episode.reward for episode in episodes]
    return Manifest(
        kind="features",
        name=config.name,
        environment=config.environment,
        target="td-advantage",
        label_range=(min(rewards), max(rewards)),
        prior=PriorSection(tau=learned.weights.tau, greedy_weight=learned.weights.greedy),
        licence=judged_by_the_rest(
            licence_of(learned.evidence, learned.credit, held_back=held_back), left_out_of(config.source)
        ),
        metrics={
            "episodes": len(set(played_of(episodes))),
            "tasks": len({episode.task for episode in episodes}),
            "steps": sum(len(episode.actions) for episode in episodes),
            "mean_reward": sum(rewards) / len(rewards),
        },
    )
