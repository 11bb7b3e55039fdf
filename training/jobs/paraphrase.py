"""Paraphrase the tasks of an environment, for methods that draw in other words (Q*Agent-I-aug).

    qguide paraphrase --config training/configs/alfworld/paraphrase.toml

asks a model for each task's description in other words, with the paper's prompt; writes one row per
task, which `qguide evaluate` reads for `q-guided-aug` and `best-of-n-aug`. A small policy that was
trained to act cannot write paraphrases: name an instruction-tuned model.
"""

from functools import partial

from pydantic import Field

from qguide.qnet.decision.perturbation import MAX_TASK_CHARACTERS, PROMPT, find_task
from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.qnet.types import Candidate, Message, SampleRequest, Sampling
from qguide.training.evaluation.paraphrased import ParaphraseRow
from qguide.training.rollouts.episode import derived_seed
from qguide.training.rollouts.harness import PlayableTask, Rollouts
from qguide.training.rollouts.method import JobModels, Method, MethodConfig, PlayedTask, play_job
from qguide.training.rollouts.rollout import RolloutTask


class ParaphraseConfig(MethodConfig):
    """Configuration of `qguide paraphrase`.

    Attributes:
        policy: the model that writes: "upstream:NAME", an address with "#" and a model, or a
            folder.
        texts: paraphrases drawn for each task; for M candidates the methods use M - 1.
        temperature: sampling temperature.
        max_tokens: maximum number of tokens in one paraphrase; one that is cut off is dropped.
    """

    policy_fields = ("policy",)

    policy: str
    texts: int = Field(default=4, ge=1)
    temperature: float = Field(default=1.0, gt=0)
    max_tokens: int = Field(default=256, ge=1)


class Paraphrase(Method[ParaphraseConfig]):
    """Asks for each task's description in other words."""

    job, unit, rate, as_agent = "paraphrase", "tasks", "paraphrases", False

    def __init__(self, config: ParaphraseConfig, run: Rollouts, models: JobModels) -> None:
        super().__init__(config, run, models)
        environment = run.suite.environment
        if not environment.task_markers:
            raise ConfigError(
                f"environment {environment.name!r} has no task_markers, so rules and views would "
                "be paraphrased with the task; name an EnvironmentBundle whose task_markers say "
                "where the first observation states it"
            )

    def play(self, playable: PlayableTask) -> RolloutTask[PlayedTask]:
        """Paraphrase one task."""
        config, environment = self.config, playable.environment
        first = yield from playable.game(config.seed).first()
        history = environment.chat.history(first, ())
        task = find_task(history, markers=environment.task_markers).text(history).strip()
        if not task or len(task) > MAX_TASK_CHARACTERS:
            raise EnvironmentFailureError(
                f"the task's description has {len(task):,} characters; 1 to "
                f"{MAX_TASK_CHARACTERS:,} can be paraphrased. Correct the task_markers of the "
                "environment's bundle"
            )
        seed = derived_seed(config.seed, playable.task.id)
        sampling = Sampling(config.temperature, config.max_tokens, seed=seed)
        asked = (Message("user", PROMPT.format(task=task)),)
        candidates: list[Candidate] = yield SampleRequest(asked, config.texts, sampling)
        drawn = [each.message.content.strip() for each in candidates if each.finished]
        texts = tuple(dict.fromkeys(text for text in drawn if text not in ("", task)))
        if not texts:
            raise EnvironmentFailureError(
                f"{self.source} wrote no paraphrase of {task[:80]!r} in {config.texts} draws; name "
                "an instruction-tuned model or raise max_tokens"
            )
        row = ParaphraseRow(
            task_id=playable.task.id, kind=playable.task.kind, task=task, texts=texts, source=self.source
        )
        return PlayedTask([row], {"paraphrases": len(texts)})


run_paraphrase = partial(play_job, Paraphrase)
