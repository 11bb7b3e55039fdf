"""Paraphrase the tasks of an environment, for methods that draw in other words (Q*Agent-I-aug).

    qguide paraphrase --config training/configs/alfworld/paraphrase.toml

asks a model for each task's description in other words, with the paper's prompt; writes one row per
task, which `qguide evaluate` reads for `q-guided-aug` and `best-of-n-aug`. A small policy that was
trained to act cannot write paraphrases: name an instruction-tuned model.
"""

from functools import partial

from pydantic import Field
from rich.console import Console

from qguide.qnet.decision.perturbation import MAX_TASK_CHARACTERS, PROMPT, find_task
from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.qnet.types import BatchPolicy, Candidate, Message, SampleRequest, Sampling
from qguide.training.data.paraphrases import ParaphraseRow
from qguide.training.rollouts.episode import derived_seed
from qguide.training.rollouts.harness import PlayableTask, RolloutConfig, Rollouts, open_rollouts
from qguide.training.rollouts.hosted import HostedPolicy
from qguide.training.rollouts.models import sha256_of_policy
from qguide.training.rollouts.rollout import RolloutTask


class ParaphraseConfig(RolloutConfig):
    """Configuration of `qguide paraphrase`.

    Attributes:
        policy: the model that writes: "upstream:NAME", an address with "#" and a model, or a
            folder.
        texts: paraphrases drawn for each task; for M candidates the methods use M - 1.
        temperature: sampling temperature.
        max_tokens: maximum number of tokens in one paraphrase; one that is cut off is dropped.
        seed: seed of the draws.
    """

    policy_fields = ("policy",)

    policy: str
    texts: int = Field(default=4, ge=1)
    temperature: float = Field(default=1.0, gt=0)
    max_tokens: int = Field(default=256, ge=1)
    seed: int = 0


def run_paraphrase(
    config: ParaphraseConfig,
    *,
    policy: BatchPolicy | HostedPolicy | None = None,
    console: Console | None = None,
) -> dict[str, float]:
    """Paraphrase the tasks that have no row yet.

    Returns:
        Number of tasks and of paraphrases that this run wrote.
    """
    weights = {"policy_sha256": "" if policy else sha256_of_policy(config.policy)}
    with open_rollouts("paraphrase", config, weights=weights, console=console) as rollouts:
        _require_markers(rollouts)
        policy = policy or rollouts.build_policy(config.policy, as_agent=False)
        figures = {"tasks": 0.0, "paraphrases": 0.0}
        ask = partial(_paraphrase, config, rollouts, figures, policy.name)
        rollouts.play(ask, policy=policy, as_agent=False)
        rollouts.require_some(int(figures["tasks"]))
        return figures


def _require_markers(rollouts: Rollouts) -> None:
    environment = rollouts.suite.environment
    if not environment.task_markers:
        raise ConfigError(
            f"environment {environment.name!r} has no task_markers, so rules and views would be "
            "paraphrased with the task; name an EnvironmentBundle whose task_markers say where the "
            "first observation states it"
        )


def _paraphrase(
    config: ParaphraseConfig,
    rollouts: Rollouts,
    figures: dict[str, float],
    source: str,
    playable: PlayableTask,
) -> RolloutTask[None]:
    """Write one task's row."""
    first = yield from playable.game(config.seed).first()
    environment = playable.environment
    history = environment.chat.history(first, ())
    task = find_task(history, markers=environment.task_markers).text(history).strip()
    if not task or len(task) > MAX_TASK_CHARACTERS:
        raise EnvironmentFailureError(
            f"the task's description has {len(task):,} characters; 1 to {MAX_TASK_CHARACTERS:,} "
            "can be paraphrased. Correct the task_markers of the environment's bundle"
        )
    seed = derived_seed(config.seed, playable.task.id)
    sampling = Sampling(config.temperature, config.max_tokens, seed=seed)
    asked = (Message("user", PROMPT.format(task=task)),)
    candidates: list[Candidate] = yield SampleRequest(asked, config.texts, sampling)
    drawn = [candidate.message.content.strip() for candidate in candidates if candidate.finished]
    texts = tuple(dict.fromkeys(text for text in drawn if text not in ("", task)))
    if not texts:
        raise EnvironmentFailureError(
            f"{source} wrote no paraphrase of {task[:80]!r} in {config.texts} draws; name an "
            "instruction-tuned model or raise max_tokens"
        )
    figures["tasks"] += 1
    figures["paraphrases"] += len(texts)
    rollouts.write(
        ParaphraseRow(
            task_id=playable.task.id,
            kind=playable.task.kind,
            task=task,
            texts=texts,
            source=source,
        )
    )
