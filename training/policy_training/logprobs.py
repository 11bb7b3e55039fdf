"""Policies in training on packed replies, and the log-probabilities of these."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn
from transformers import PreTrainedModel

from qguide.qnet.engine.kernels import upload
from qguide.qnet.engine.model_memory import in_float32
from qguide.qnet.engine.tree_attention import tree_inputs, use_block_masks
from qguide.qnet.engine.tree_branches import has_recurrent_layers, outputs_of_tree
from qguide.qnet.engine.windows import choosing_few
from qguide.qnet.models.checkpoint import load_policy
from qguide.qnet.models.hub import model_folder
from qguide.qnet.models.implicit_q import token_logprobs
from qguide.qnet.models.manifest import Manifest
from qguide.training.algorithms.choice_quality import ScoredChoice, choice_quality
from qguide.training.licence.assessment import Assessment
from qguide.training.optimization.objective import Objective, save_policy
from qguide.training.optimization.packed_replies import PackedReplies, ReplyPath
from qguide.training.optimization.padded_batches import plan_epochs
from qguide.training.policy_training.options import ReplyTraining
from qguide.training.q_training.validation import require_same, two_branches


class ReplyObjective(Objective[PreTrainedModel]):
    """Likelier replies, of which a policy is written."""

    rows: list[PackedReplies]

    def __init__(self, config: ReplyTraining, *, title: str, data: Sequence[Path]) -> None:
        self.title, self.keep = title, config.keep
        self._training, self._data = config, data
        loaded = load_policy(model_folder(config.policy))
        self.model, self.renderer = loaded.model, loaded.renderer
        self.limits = {"max_tokens": config.optimization.micro_batch_tokens, "seed": config.seed}

    def plan(self, rows: list[PackedReplies]) -> None:
        """Train on these rows in every epoch."""
        training = self._training
        self.rows, self.epochs = plan_epochs(lambda _: rows, training.optimization, seed=training.seed, renewed=False)

    def prepare(self, device: torch.device) -> None:
        """See `Objective`."""
        prepare_for_packing(self.model, device)

    def save(self, model: PreTrainedModel, figures: Mapping[str, float], assessed: Assessment) -> Manifest:
        """See `Objective`."""
        return save_policy(
            self._training,
            model,
            self.renderer.tokenizer,
            trunk=self._training.policy,
            data=self._data,
            metrics=figures,
        )


def reply_logprobs(model: PreTrainedModel, tree: PackedReplies) -> Tensor:
    """(R,) log pi of each reply of a packed row: the sum over its tokens, in float32."""
    # A vocabulary's logits are the largest tensor here: only where a scored token follows.
    scored = sorted({token for reply in tree.replies for token in reply})
    row_of = {before: row for row, before in enumerate(sorted({tree.before[t] for t in scored}))}
    device = model.device
    logits_RV = _logits(model, tree, list(row_of))
    rows_N = upload([row_of[tree.before[token]] for token in scored], device)
    tokens_N = upload([tree.token_ids[token] for token in scored], device)
    logprobs_N = token_logprobs(logits_RV[rows_N], tokens_N)
    index_of = {token: index for index, token in enumerate(scored)}
    owners = [i for i, reply in enumerate(tree.replies) for _ in reply]
    parts = [index_of[token] for reply in tree.replies for token in reply]
    sums_R = torch.zeros(len(tree.replies), device=device)
    return sums_R.index_add(0, upload(owners, device), logprobs_N[upload(parts, device)])


def _logits(model: PreTrainedModel, tree: PackedReplies, read: list[int]) -> Tensor:
    """(R, V) logits at some of a packed row's tokens, and at no other."""
    if not has_recurrent_layers(model):
        inputs = tree_inputs(tree, model.device)
        logits_RV: Tensor = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"].of_layers(model.config),
            position_ids=inputs["position_ids"],
            use_cache=False,
            logits_to_keep=upload(read, model.device),
        ).logits[0]
        return logits_RV

    def run(ids_BT: Tensor, read_N: Tensor, **options: Any) -> tuple[Tensor, Any]:
        # `logits_to_keep` takes columns of all rows alike, and not every architecture has it.
        chosen = model.get_output_embeddings().register_forward_pre_hook(
            lambda _, args: (args[0].flatten(0, 1)[read_N][None],)
        )
        try:
            output = model(input_ids=ids_BT, **{"use_cache": False} | options)
        finally:
            chosen.remove()
        return output.logits[0], output

    return outputs_of_tree(model, run, tree, read)


@torch.no_grad()
def require_packable(model: PreTrainedModel) -> None:
    """Make sure that log pi of a packed reply equals that of its path alone."""
    with in_float32(model), choosing_few(model):
        _compare_packed(model)


def _compare_packed(model: PreTrainedModel) -> None:
    packed = PackedReplies()
    for path in two_branches(model.config):
        alone = PackedReplies()
        reply = ReplyPath(path, scored=list(range(4, len(path))))
        for tree in (packed, alone):
            tree.add_reply(reply)
        # The first reply has nothing before it in the row; the second may see the first.
        packed_R = reply_logprobs(model, packed)[-1:]
        require_same(type(model).__name__, packed_R, reply_logprobs(model, alone))


@torch.no_grad()
def kept_logprobs(model: PreTrainedModel, trees: Sequence[PackedReplies], kept: Path) -> list[Tensor]:
    """(R,) of each packed row under a model before the training, computed once and kept in a file.

    Args:
        kept: the file, in the folder of a run whose configuration names the model by hash.
    """
    replies = _replies_sha256(trees)
    if kept.is_file():
        saved = torch.load(kept, weights_only=True)
        if saved["replies_sha256"] == replies:
            logprobs: list[Tensor] = saved["logprobs"]
            return logprobs
    model.eval()
    shown = track(trees, kept.stem.replace("_", " "), transient=True)
    found = [reply_logprobs(model, tree).cpu() for tree in shown]
    unfinished = kept.with_suffix(".partial")
    torch.save({"replies_sha256": replies, "logprobs": found}, unfinished)
    unfinished.replace(kept)
    return found


def _replies_sha256(trees: Sequence[PackedReplies]) -> str:
    digest = sha256()
    for tree in trees:
        digest.update(repr((tree.token_ids, tree.before, tree.replies)).encode())
    return digest.hexdigest()


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout probability of a model to 0; its configuration stays as it is."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        # Attention layers have a number instead of a module.
        for name, value in list(vars(module).items()):
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def prepare_for_packing(policy: PreTrainedModel, device: torch.device) -> None:
    """Let a policy run on packed rows, where it is now and on the device that trains it."""
    use_block_masks(policy, policy.device)
    require_packable(policy)
    use_block_masks(policy, device)  # where FSDP moves it later
    disable_dropout(policy)  # noise in it alone would move its ratio to the reference


def preference_figures(margins: Sequence[float], suffix: str) -> dict[str, float]:
    """Share of pairs whose chosen side has the higher value (a tie counts half), mean margin, and number."""
    if not margins:
        return {}
    right = sum((m > 0) + 0.5 * (m == 0) for m in margins)
    return {
        f"preference_accuracy{suffix}": right / len(margins),
        f"preference_margin{suffix}": sum(margins) / len(margins),
        f"preference_pairs{suffix}": len(margins),
    }


@torch.no_grad()
def validate_choices(policy: PreTrainedModel, trees: Sequence[PackedReplies]) -> dict[str, float]:
    """Figures of the candidates that the policy finds likeliest, on held-back groups.

    Returns:
        The figures of `choice_quality` with log pi as the value, and `expected_steps`: steps to
        the goal after a candidate, weighted by the policy's probabilities among the candidates.
    """
    policy.eval()
    choices: list[ScoredChoice] = []
    expected: list[float] = []
    for tree in trees:
        logprob_R = reply_logprobs(policy, tree).cpu()
        for group in tree.groups:
            choice, logprob_C = group.choice, logprob_R[list(group.places)]
            share_C = torch.softmax(logprob_C, dim=0)
            expected.append(float((share_C * torch.tensor(choice.steps)).sum()))
            choices.append(ScoredChoice(logprob_C.tolist(), choice.steps, choice.valid, choice.draws))
    if not choices:
        return {}
    return choice_quality(choices) | {"expected_steps": sum(expected) / len(expected)}
