"""Actions that the expert got wrong on purpose are context to every loss, and never its target."""

from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from qguide.qnet.models.loading import embedded_path, load_renderer
from qguide.qnet.records import messages_of
from qguide.qnet.rendering.renderer import Renderer
from qguide.training.data.preferences import PreferenceRow
from qguide.training.data.runs import read_rows
from qguide.training.data.trajectories import read_trajectories
from qguide.training.environments.alfworld.bundle import AlfWorldConfig
from qguide.training.jobs.collect import CollectConfig, run_collect
from qguide.training.jobs.pairs import PairsConfig, run_pairs
from qguide.training.optimization.packed_replies import PackedReplies, add_pair
from qguide.training.policy_training.dpo_loss import PairWeights, pairs_loss
from qguide.training.policy_training.options import DpoLossOptions, LevelWeights


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return load_renderer(embedded_path("policy"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Run folders of an expert that errs on purpose, and of a policy that is cut off early."""
    runs = tmp_path_factory.mktemp("runs")
    common = {"environment": AlfWorldConfig(limit=12, count=12)}
    expert = CollectConfig.model_validate(common | {"output": runs / "expert", "mistakes": 0.3})
    own = CollectConfig.model_validate(
        common | {"output": runs / "own", "player": "policy", "policy": "embedded", "only_won": False, "max_steps": 3}
    )
    for config in (expert, own):
        run_collect(config, console=Console(file=StringIO()))
    return expert.output, own.output


@pytest.fixture(scope="module")
def pairs(folders: tuple[Path, Path]) -> dict[str, PreferenceRow]:
    """ETO's pairs of those tasks whose expert erred, by task."""
    output = folders[0].parent / "pairs"
    run_pairs(PairsConfig(trajectories=folders, output=output, against_expert=True))
    rows = read_rows(output / "rows.jsonl", PreferenceRow)
    return {row.task_id: row for row in rows if row.mistakes}


def pack(renderer: Renderer, row: PreferenceRow) -> PackedReplies:
    packed: list[PackedReplies] = []
    add_pair(packed, renderer, row, max_length=4096, max_tokens=4096)
    [tree] = packed
    return tree


def tokens_of_actions(renderer: Renderer, row: PreferenceRow) -> tuple[list[int], list[int]]:
    """Token ids of the right and of the mistaken actions of the chosen side, in order."""
    rendered = renderer.encode_episode((*row.history, *messages_of(row.chosen)))
    right: list[int] = []
    mistaken: list[int] = []
    for number, (start, end) in enumerate(rendered.action_spans):
        side = mistaken if number in row.mistakes else right
        side += rendered.token_ids[start:end]
    return right, mistaken


def test_only_the_right_actions_of_a_collected_row_are_scored(
    folders: tuple[Path, Path], pairs: dict[str, PreferenceRow], renderer: Renderer
) -> None:
    experts = {row.task_id: row for row in read_trajectories(folders[0] / "rows.jsonl")}
    assert len(pairs) >= 5
    for task_id, pair in pairs.items():
        assert pair.mistakes == experts[task_id].mistakes
        tree = pack(renderer, pair)
        scored = [tree.token_ids[token] for token in tree.replies[tree.pairs[0].chosen]]
        right, mistaken = tokens_of_actions(renderer, pair)
        assert mistaken
        assert scored == right


def test_neither_the_dpo_term_nor_the_sft_term_moves_a_mistake(
    pairs: dict[str, PreferenceRow], renderer: Renderer
) -> None:
    pair = min(pairs.values(), key=lambda row: len(row.chosen))
    tree = pack(renderer, pair)
    objective = DpoLossOptions(mixture="levels", weights=LevelWeights(sft=1.0))
    weights = PairWeights.of(objective, [tree])
    logprobs = torch.full((len(tree.token_ids),), -1.0, requires_grad=True)
    policy_R = torch.stack([logprobs[list(reply)].sum() for reply in tree.replies])
    pairs_loss(policy_R, policy_R.detach(), tree, weights=weights, beta=0.1).total.backward()
    assert logprobs.grad is not None
    pushed_up = [tree.token_ids[int(token)] for token in (logprobs.grad < 0).nonzero()]
    assert pushed_up == tokens_of_actions(renderer, pair)[0]
