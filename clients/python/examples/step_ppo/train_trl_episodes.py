r"""PPO's clipped objective on whole episodes with TRL, rewarded by their outcome alone (PPO).

python train_trl_episodes.py --environment '{"name": "alfworld", "games": "data/alfworld/train"}' \
    --policy runs/alfworld/sft/checkpoint --output runs/ppo

The environment is the `[environment]` table of any job, as JSON. It is played in this process by
QGuide's rollouts, with the weights as they are at each step. All actions of an episode share its
advantage, the outcome less the mean outcome of the task's draws: TRL 1.16 has no PPO trainer, and
its GRPOTrainer takes that mean in place of a value network.
"""

import argparse
import json
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Any

from datasets import Dataset
from train_trl import build_config, build_parser, train
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.trainer.grpo_trainer import GRPOTrainer

from qguide.qnet.device.local_policy import LocalPolicy
from qguide.qnet.errors import HistoryTooLongError
from qguide.qnet.models.checkpoint import LoadedPolicy, load_policy
from qguide.qnet.rendering.renderer import Renderer
from qguide.qnet.types import Sampling
from qguide.training.environments.registry import SelectedSuite, build_selected_suite, environment_config
from qguide.training.rollouts.driver import run_together
from qguide.training.rollouts.episode import Episode, first_reply, play_episode, seeded

Turn = dict[str, str]


class Rollouts:
    """Whole episodes of the policy that is trained, as TRL's `rollout_func`.

    Args:
        suite: its tasks are named by the prompts.
        renderer: of the policy.
        sampling: temperature 1, so that the draws are the policy's own.
        max_steps: actions after which an episode is cut off.
        seed: of the draws.
    """

    def __init__(
        self, suite: SelectedSuite, renderer: Renderer, *, sampling: Sampling, max_steps: int, seed: int
    ) -> None:
        self._suite = suite
        self._renderer = renderer
        self._sampling = sampling
        self._max_steps = max_steps
        self._seed = seed
        self._tasks = {task.id: task for task in suite.tasks}
        self._played = 0

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """One episode per prompt, which TRL repeats for each draw, as tokens with its outcome."""
        policy = LocalPolicy(LoadedPolicy("policy", _copy(trainer), self._renderer, manifest=None))
        tasks = [self._play(prompt[0]["content"]) for prompt in prompts]
        episodes = run_together(tasks, policy=policy)
        for prompt, episode in zip(prompts, episodes, strict=True):
            if not episode.steps:
                raise HistoryTooLongError(
                    f"task {prompt[0]['content']} leaves the policy no room for a reply; leave it out by `task_ids`"
                )
        tokens = [tokens_of(episode, self._renderer) for episode in episodes]
        return {
            "prompt_ids": [first for first, _, _ in tokens],
            "completion_ids": [rest for _, rest, _ in tokens],
            "env_mask": [mask for _, _, mask in tokens],
            # Of the sampling engine; TRL corrects by them only where that is vLLM.
            "logprobs": [[0.0] * len(rest) for _, rest, _ in tokens],
            "outcome": [episode.reward for episode in episodes],
        }

    def _play(self, task_id: str) -> Any:
        self._played += 1
        return play_episode(
            partial(self._suite.make, self._tasks[task_id]),
            first_reply(seeded(self._sampling, self._seed, task_id, self._played)),
            max_steps=self._max_steps,
            chat=self._suite.environment.chat,
        )


def _copy(trainer: Any) -> Any:
    """A copy of the trained model, as the engine replaces the attention of the model it gets."""
    trained = trainer.accelerator.unwrap_model(trainer.model)
    copy = AutoModelForCausalLM.from_config(deepcopy(trained.config))
    copy.load_state_dict(trained.state_dict())
    return copy.to(device=trained.device, dtype=trained.dtype)


def tokens_of(episode: Episode, renderer: Renderer) -> tuple[list[int], list[int], list[int]]:
    """Tokens before the first action, those from it to the last one, and 1 for those of actions."""
    rendered = renderer.encode_episode(episode.messages)
    start, end = rendered.action_spans[0][0], rendered.action_spans[-1][1]
    mask = [0] * (end - start)
    for first, last in rendered.action_spans:
        mask[first - start : last - start] = [1] * (last - first)
    return rendered.token_ids[:start], rendered.token_ids[start:end], mask


def outcomes(outcome: Sequence[float], **_: object) -> list[float | None]:
    """TRL's reward function: the outcomes that the rollouts reported."""
    return list(outcome)


def build_trainer(arguments: argparse.Namespace) -> Any:
    """The trainer of a policy on the tasks of an environment."""
    loaded = load_policy(arguments.policy)
    suite = build_selected_suite(environment_config(json.loads(arguments.environment)))
    rollouts = Rollouts(
        suite,
        loaded.renderer,
        sampling=Sampling(temperature=1.0, max_tokens=arguments.max_tokens),
        max_steps=arguments.max_steps,
        seed=arguments.seed,
    )
    return GRPOTrainer(
        model=loaded.model,
        processing_class=AutoTokenizer.from_pretrained(arguments.policy, trust_remote_code=False),
        reward_funcs=outcomes,
        rollout_func=rollouts,
        args=build_config(
            arguments,
            # An episode has a hundred times the tokens of an action, so a task is a batch.
            per_device_train_batch_size=arguments.draws,
            gradient_accumulation_steps=arguments.tasks_per_step,
            max_completion_length=arguments.max_steps * arguments.max_tokens,
        ),
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": task.id}]} for task in suite.tasks]),
    )


def parse() -> argparse.Namespace:
    """The command line."""
    parser = build_parser(__doc__)
    parser.add_argument("--environment", required=True, help="an [environment] table as JSON")
    parser.add_argument("--tasks-per-step", type=int, default=8)
    parser.add_argument("--max-steps", type=int, default=40, help="actions of an episode")
    return parser.parse_args()


if __name__ == "__main__":
    given = parse()
    train(build_trainer(given), given.output)
