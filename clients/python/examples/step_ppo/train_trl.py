"""PPO's clipped objective on single steps with TRL, rewarded by the server's Q (Step-PPO).

python train_trl.py --states states.jsonl --policy runs/alfworld/sft/checkpoint --output runs/ppo

TRL 1.16 has no PPO trainer. Its GRPOTrainer keeps PPO's clipped ratio and the divergence
from the start policy, and takes the mean reward of a state's draws as the baseline in place of a
value network. verl.yaml has PPO with a value network.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from datasets import Dataset
from reward import q_rewards
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer


def build_config(arguments: argparse.Namespace, **sizes: Any) -> GRPOConfig:
    """TRL's settings of PPO's objective; `sizes` are those of batches and completions."""
    return GRPOConfig(
        output_dir=str(arguments.output / "trainer"),
        learning_rate=arguments.learning_rate,
        max_steps=arguments.steps,
        num_generations=arguments.draws,
        num_iterations=2,  # the clipped ratio matters from the second pass over a batch on
        epsilon=0.2,
        beta=0.05,
        temperature=1.0,
        loss_type="grpo",
        # As PPO does. Scaled by state, the smallest difference of Q counts as much as a mistake.
        scale_rewards="batch",
        use_cpu=arguments.cpu,
        bf16=not arguments.cpu,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        seed=arguments.seed,
        **sizes,
    )


def build_trainer(arguments: argparse.Namespace) -> Any:
    """The trainer of a policy on the states of a file."""
    lines = arguments.states.read_text(encoding="utf-8").splitlines()
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(arguments.policy, trust_remote_code=False),
        processing_class=AutoTokenizer.from_pretrained(arguments.policy, trust_remote_code=False),
        reward_funcs=q_rewards,
        args=build_config(
            arguments,
            per_device_train_batch_size=arguments.draws * arguments.states_per_step,
            max_completion_length=arguments.max_tokens,
        ),
        train_dataset=Dataset.from_list([json.loads(line) for line in lines]),
    )


def build_parser(documentation: str | None) -> argparse.ArgumentParser:
    """The options of every training here."""
    parser = argparse.ArgumentParser(description=(documentation or "").partition("\n")[0])
    parser.add_argument("--policy", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--draws", type=int, default=8, help="draws in each state")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an action")
    parser.add_argument("--learning-rate", type=float, default=1e-6)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def parse() -> argparse.Namespace:
    """The command line."""
    parser = build_parser(__doc__)
    parser.add_argument("--states", type=Path, required=True)
    parser.add_argument("--states-per-step", type=int, default=4)
    return parser.parse_args()


def train(trainer: Any, output: Path) -> None:
    """Train, and write the policy to `output / "policy"`."""
    trainer.train()
    trainer.save_model(str(output / "policy"))


if __name__ == "__main__":
    given = parse()
    train(build_trainer(given), given.output)
