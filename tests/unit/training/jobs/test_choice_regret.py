"""The choice-regret job on an expert's mistakes, and on a model's own log-probability."""

import shutil
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from rich.console import Console

from qguide.qnet.errors import ConfigError, UpstreamError
from qguide.qnet.models.checkpoint import load_policy
from qguide.qnet.records import TreeRow
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.qnet.types import Message, Scorer, ScoreRequest, ScoreResult
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.training.data.decision_groups import choices_of
from qguide.training.data.runs import JsonlWriter, read_rows
from qguide.training.environments.alfworld.bundle import AlfWorldConfig
from qguide.training.environments.alfworld.expert.policy import ExpertPolicy
from qguide.training.evaluation.choice_regret import PolicyDraws, ScoredEpisodeRow
from qguide.training.exploration.decision_groups import Decisions, Draws
from qguide.training.jobs.choice_regret import ChoiceRegretConfig, run_choice_regret
from qguide.training.jobs.groups import GroupsConfig, run_groups
from tests.support.corridor_upstream import REPLIES, hosted, serving_corridors
from tests.support.decision_groups import candidate, groups_row
from tests.support.tiny_models import save_policy, save_qnet


class LikesTheLast(Scorer):
    """A scorer whose Q rises with a candidate's index."""

    name = "likes-the-last"

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        return [ScoreResult(tuple(map(float, range(len(r.candidates)))), 1) for r in requests]


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Decisions among the mistakes of an expert in three generated games."""
    output = tmp_path_factory.mktemp("groups")
    config = GroupsConfig(
        output=output,
        environment=AlfWorldConfig(first_seed=0, count=3),
        decisions=Decisions(draws=(Draws(n=5, temperature=1.0),), max_steps=6),
    )
    run_groups(config, policy=ExpertPolicy(), console=Console(file=StringIO()))
    return output


def configure(output: Path, groups: Path, **changes: object) -> ChoiceRegretConfig:
    values = {"output": output, "groups": (groups,), "qnet": "any"}
    return ChoiceRegretConfig.model_validate(values | changes)


def test_a_scorers_choices_are_compared_with_what_the_expert_found(tmp_path: Path, groups: Path) -> None:
    figures = run_choice_regret(configure(tmp_path, groups), scorer=LikesTheLast())
    rows = list(read_rows(tmp_path / "rows.jsonl", ScoredEpisodeRow))
    decisions = [decision for row in rows for decision in row.decisions]
    assert figures["episodes"] == len(rows) == 3
    assert figures["decisions"] == len(decisions) > 3
    for decision in decisions:
        assert decision.chosen == len(decision.replies) - 1  # what the scorer likes
        assert sum(decision.draws) == 5
    assert figures["regret_steps"] > 0
    again = run_choice_regret(configure(tmp_path, groups), scorer=LikesTheLast())
    assert again == figures


def corridor_groups(folder: Path) -> TreeRow:
    """One decision in a corridor, as a run folder."""
    row = groups_row(
        ([candidate(f"Action: {one}") for one in ("go left", "go right", "open door")], 0),
        task_id="corridor:0",
        environment="fake",
        first_observation="You are in a corridor.",
    )
    with JsonlWriter(folder / "rows.jsonl") as writer:
        writer.write(row)
    return row


def test_a_policys_own_log_probability_is_a_score(tmp_path: Path) -> None:
    row = corridor_groups(tmp_path / "groups")
    policy = save_policy(tmp_path / "policy")
    config = configure(tmp_path / "out", tmp_path / "groups", qnet="", policy=str(policy))
    run_choice_regret(config)
    [scored] = read_rows(tmp_path / "out" / "rows.jsonl", ScoredEpisodeRow)
    loaded = load_policy(policy)
    [decision] = choices_of(row)
    for said, q in zip(decision.candidates, scored.decisions[0].q_values, strict=True):
        before = loaded.renderer.encode_history(decision.history)
        after = loaded.renderer.encode_candidate(Message("assistant", said.action))
        with torch.inference_mode():
            logits = loaded.model(torch.tensor([before + after])).logits[0]
        logprobs = logits.log_softmax(-1)[len(before) - 1 : -1]
        expected = logprobs.gather(1, torch.tensor(after)[:, None]).sum()
        assert q == pytest.approx(float(expected), abs=1e-4)


@pytest.mark.parametrize("field", ["qnet", "policy"])
def test_other_weights_in_the_same_place_are_refused(tmp_path: Path, field: str) -> None:
    corridor_groups(tmp_path / "groups")
    models = []
    for seed in range(2):
        model = save_policy(tmp_path / f"policy {seed}", seed=seed)
        models.append(save_qnet(tmp_path / f"q {seed}", model) if field == "qnet" else model)
    given = {"qnet": "", field: str(models[0])}
    config = configure(tmp_path / "out", tmp_path / "groups", **given)
    figures = run_choice_regret(config)
    assert run_choice_regret(config) == figures
    rows = (tmp_path / "out" / "rows.jsonl").read_bytes()
    shutil.rmtree(models[0])
    models[1].rename(models[0])
    with pytest.raises(ConfigError, match=f": {field}_sha256 was '.+' .*'.+';"):
        run_choice_regret(config)
    assert (tmp_path / "out" / "rows.jsonl").read_bytes() == rows


def test_groups_without_a_choice_are_refused(tmp_path: Path, groups: Path) -> None:
    with JsonlWriter(tmp_path / "none" / "rows.jsonl"):
        pass
    with pytest.raises(ConfigError, match=r"none: .*decision .*`qguide groups`"):
        run_choice_regret(configure(tmp_path / "out", tmp_path / "none"), scorer=LikesTheLast())


@pytest.mark.parametrize("changes", [{"policy": "embedded"}, {"qnet": ""}])
def test_exactly_one_scorer_is_named(tmp_path: Path, groups: Path, changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=r"qnet is '.*' .*policy '.*'; .*one"):
        configure(tmp_path, groups, **changes)


def test_a_scorer_that_reads_observations_is_told_what_each_candidate_was_answered(
    tmp_path: Path, groups: Path
) -> None:
    scorer = ScriptedScorer({"Nothing happens": -1.0}, reads_observation=True)
    figures = run_choice_regret(configure(tmp_path / "run", groups), scorer=scorer)
    assert figures["valid_above_invalid"] == 1.0


def test_a_hosted_policys_score_is_its_share_of_draws_and_is_drawn_once(tmp_path: Path) -> None:
    corridor_groups(tmp_path / "groups")
    fake = FakeUpstream()
    with serving_corridors(fake) as url:
        config = configure(
            tmp_path / "out",
            tmp_path / "groups",
            qnet="",
            policy="upstream:demo",
            upstreams=hosted(url),
            draws=PolicyDraws(n=2 * len(REPLIES)),
        )
        figures = run_choice_regret(config)
        assert run_choice_regret(config) == figures
    [scored] = read_rows(tmp_path / "out" / "rows.jsonl", ScoredEpisodeRow)
    # Of the seven replies of the script, two go left, two go right and one opens the door.
    assert scored.decisions[0].q_values == pytest.approx((2 / 7, 2 / 7, 1 / 7))
    assert [(body["n"], body["temperature"]) for body in fake.asked] == [(14, 1.0)]
    assert fake.sessions == ["corridor:0"]


def test_draws_are_kept_where_the_upstream_fails(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    for _ in range(3):
        corridor_groups(groups)
    fake = FakeUpstream(fault="401", faults_after=2)
    with serving_corridors(fake) as url:
        draws = PolicyDraws(n=2, parallel=1)
        own = {"qnet": "", "policy": "upstream:demo", "draws": draws}
        config = configure(tmp_path / "out", groups, upstreams=hosted(url), **own)
        with pytest.raises(UpstreamError, match=r"demo .*401\. .*resume$"):
            run_choice_regret(config)
        fake.fault = ""
        assert run_choice_regret(config)["episodes"] == 3
    # The question whether a failing upstream is lost belongs to no episode.
    assert len([session for session in fake.sessions if session]) == 4


@pytest.mark.parametrize("policy", ["upstream:other", "http://host/v1"])
def test_a_hosted_policy_has_to_be_there(tmp_path: Path, policy: str) -> None:
    with pytest.raises(ValidationError, match=r"\[upstreams\.other\]|http://HOST:PORT/v1#MODEL"):
        configure(tmp_path, tmp_path, qnet="", policy=policy)
