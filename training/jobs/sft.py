"""Behaviour cloning: negative log-likelihood of the expert's action tokens (QLASS equation 5).

    qguide sft --config training/configs/alfworld/sft.toml

reads episodes, writes a policy checkpoint. Either an LLM folder is fine-tuned (`base`) or a
small Llama is trained from scratch with a tokenizer of its own (`architecture`).

What it learns from makes it one of the papers' baselines (training/configs/alfworld/baselines):

    RFT           the expert's episodes and a policy's distinct successes
    AgentEvol     the expert's episodes and all of a policy's, weighted by their reward
    Q*Agent-ST    the expert's episodes and all guided ones
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from qguide.qnet.chat_messages import message_key
from qguide.qnet.engine.kernels import upload
from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.models.hub import model_folder
from qguide.qnet.models.loading import load_renderer
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.models.text_model import load_causal_lm
from qguide.qnet.rendering.renderer import Renderer
from qguide.qnet.types import Message
from qguide.training.data.augmentation import build_augmenter
from qguide.training.data.trajectories import Trajectory, read_trajectories
from qguide.training.licence.assessment import Assessment
from qguide.training.optimization.accelerator import awaits_weights
from qguide.training.optimization.objective import Loss, Objective, save_policy
from qguide.training.optimization.padded_batches import Sequence1D, pad_column, pad_ids, padded_tokens, plan_epochs
from qguide.training.optimization.trainer import train
from qguide.training.policy_training.options import SftConfig
from qguide.training.rollouts.models import weights_sha256
from qguide.training.small_models import build_llama, train_tokenizer


class Demonstration(NamedTuple):
    """An episode, and the indices of those of its actions that must not be imitated.

    Attributes:
        weight: of all its tokens in the loss; an episode of weight 2 counts as two.
    """

    messages: Sequence[Message]
    mistakes: tuple[int, ...] = ()
    weight: float = 1.0


def read_demonstrations(
    folders: Iterable[Path], *, distinct: bool = False, reward_weighted: bool = False
) -> list[Demonstration]:
    """The episodes of these run folders, in order.

    Args:
        distinct: leave out an episode whose sequence of actions, whatever their thoughts, is that
            of an earlier episode of the same task (RFT).
        reward_weighted: the outcome reward is the episode's weight (AgentEvol); an episode of
            reward 0 is left out.
    """
    found = read_trajectories(*folders)
    episodes = _distinct(found) if distinct else found
    if not reward_weighted:
        return [Demonstration(each.messages, each.mistakes) for each in episodes]
    weighted = ((each, _weight(each)) for each in episodes)
    return [Demonstration(each.messages, each.mistakes, w) for each, w in weighted if w]


def _distinct(episodes: Iterable[Trajectory]) -> Iterable[Trajectory]:
    seen: set[tuple[str, str, tuple[str, ...]]] = set()
    for each in episodes:
        replies = (message_key(each.messages[i]) for i in each.replies)
        key = (each.environment, each.task_id, tuple(replies))
        if key not in seen:
            seen.add(key)
            yield each


def _weight(episode: Trajectory) -> float:
    if episode.reward < 0:
        raise RecordError(
            f"the episode of {episode.task_id} has the reward {episode.reward}, which cannot be a "
            "weight; set reward_weighted to false, or collect with rewards from 0 up"
        )
    return episode.reward


def run_sft(config: SftConfig) -> Manifest:
    """Train and write the policy checkpoint to `config.output / "checkpoint"`."""
    weights = {"base_sha256": weights_sha256(config.base)} if config.base else {}
    return train(config, SftObjective, weights=weights)


class SftObjective(Objective[PreTrainedModel]):
    """Likelier actions of episodes; `sft_loss` is the loss."""

    one_pass = True

    rows: list[Sequence1D]

    def __init__(self, config: SftConfig) -> None:
        episodes = read_demonstrations(
            config.trajectories, distinct=config.distinct, reward_weighted=config.reward_weighted
        )
        if not episodes:
            raise ConfigError(
                f"nothing to imitate in {', '.join(map(str, config.trajectories))}: there is no "
                "episode, or all have the weight 0; run `qguide collect` first"
            )
        if config.base is not None:
            config = config.model_copy(update={"base": model_folder(config.base)})
        self._config, self.title = config, f"sft {config.name}"
        messages = [episode.messages for episode in episodes]
        self.model, self._tokenizer = build_model(config, messages)
        renderer = Renderer(self._tokenizer)
        self.rows, self.epochs = plan_epochs(
            lambda rng: _sequences(config, renderer, episodes, rng), config.optimization, seed=config.seed, renewed=True
        )
        self._counts = {"episodes": len(episodes), "steps": sum(map(len, self.epochs))}

    def size(self, micro_batch: Sequence[int]) -> int:
        """See `Objective`; the sequences of a micro-batch are padded."""
        return padded_tokens([len(self.rows[number]) for number in micro_batch])

    def loss(self, micro_batch: Sequence[int]) -> Loss:
        """See `Objective`."""
        return sft_loss(self.model, [self.rows[number] for number in micro_batch])

    def row_loss(self, number: int) -> Loss:
        """See `Objective`."""
        return self.loss([number])

    def save(self, model: PreTrainedModel, figures: Mapping[str, float], assessed: Assessment) -> Manifest:
        """See `Objective`."""
        config = self._config
        return save_policy(
            config, model, self._tokenizer, trunk=config.base, data=config.trajectories, metrics=self._counts
        )


def build_model(
    config: SftConfig, episodes: Sequence[Sequence[Message]]
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model to train and its tokenizer: `config.base`, or a fresh Llama."""
    if config.base is not None:
        tokenizer = load_renderer(config.base).tokenizer
        return load_causal_lm(config.base, empty=awaits_weights()), tokenizer
    shape = config.architecture
    texts = (message.text for episode in episodes[:2000] for message in episode)
    tokenizer = train_tokenizer(
        texts, vocab_size=shape.vocab_size, phrases=shape.phrases, numbered_words=shape.numbered_words
    )
    return build_llama(shape, tokenizer), tokenizer


def sft_sequence(renderer: Renderer, episode: Demonstration, *, observation_weight: float) -> Sequence1D:
    """Tokens of one episode; the column `weight` is 0 for mistaken actions.

    It is the episode's weight for other actions, and `observation_weight` of that elsewhere.
    """
    rendered = renderer.encode_episode(episode.messages)
    weight = [observation_weight * episode.weight] * len(rendered.token_ids)
    for number, (start, end) in enumerate(rendered.action_spans):
        weight[start:end] = [episode.weight * (number not in episode.mistakes)] * (end - start)
    return Sequence1D(rendered.token_ids, {"weight": weight})


def sft_loss(model: PreTrainedModel, rows: Sequence[Sequence1D]) -> Loss:
    """Weighted sum of -log pi(token | all tokens before it), and the sum of the weights."""
    ids_BT, weight_BT = pad_ids(rows), pad_column(rows, "weight")[:, 1:]
    # Chosen where they are: on the device, a mask would have the host wait for what it selects.
    chosen = weight_BT.nonzero(as_tuple=True)
    tokens_N, weight_N = ids_BT[:, 1:][chosen], weight_BT[chosen]
    total = float(weight_N.sum())
    ids_BT, tokens_N, weight_N, *places = (
        upload(tensor, model.device) for tensor in (ids_BT[:, :-1], tokens_N, weight_N, *chosen)
    )
    logits_NV = _logits_at(model, ids_BT, tuple(places)).float()
    nll_N = torch.nn.functional.cross_entropy(logits_NV, tokens_N, reduction="none")
    return Loss((nll_N * weight_N).sum(), total)


def _logits_at(model: PreTrainedModel, ids_BT: Tensor, places: tuple[Tensor, ...]) -> Tensor:
    """(N, V) logits of the next token at the chosen positions, as the model itself gives them."""
    # The logits are the largest tensor here. Some models scale or cap them after their output
    # layer, so it is not called alone; `logits_to_keep` takes no mask in transformers 5.19.
    keep_chosen = model.get_output_embeddings().register_forward_pre_hook(lambda _, args: (args[0][places],))
    try:
        logits_NV: Tensor = model(input_ids=ids_BT, use_cache=False).logits
    finally:
        keep_chosen.remove()
    return logits_NV


def _sequences(
    config: SftConfig, renderer: Renderer, episodes: Sequence[Demonstration], rng: random.Random
) -> list[Sequence1D]:
    augmenter = build_augmenter(config.augmentation)
    renamed = [episode._replace(messages=augmenter(episode.messages, rng)) for episode in episodes]
    sequences = [sft_sequence(renderer, episode, observation_weight=config.observation_weight) for episode in renamed]
    return [sequence for sequence in sequences if len(sequence) <= config.max_length]
