"""Jobs accept the server's Q models, and distinguish them by their weights."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from pydantic import BaseModel, ValidationError
from rich.console import Console

from qguide.qnet.decision.selection import DEFAULT_TAU
from qguide.qnet.errors import ConfigError
from qguide.qnet.models.manifest import Licence, Manifest, PriorSection, sha256_of, write_manifest
from qguide.qnet.scoring.implicit_q import SharedPrefixImplicitScorer
from qguide.qnet.scoring.value_head import SharedPrefixScorer
from qguide.qnet.types import Message, Scorer, ScoreRequest
from qguide.training.environments.corridor import CorridorConfig
from qguide.training.exploration.decision_groups import Decisions
from qguide.training.exploration.tree_expansion import Exploration
from qguide.training.jobs.choice_regret import ChoiceRegretConfig, run_choice_regret
from qguide.training.jobs.collect import CollectConfig
from qguide.training.jobs.evaluate import EvaluateConfig, run_evaluate
from qguide.training.jobs.explore import ExploreConfig, run_explore
from qguide.training.jobs.groups import Continuation, GroupsConfig, run_groups
from qguide.training.rollouts.models import (
    Inference,
    build_policy,
    build_scorer,
    licence_warning,
    prior_in_use,
    sha256_of_policy,
    sha256_of_q_model,
)
from tests.support.tiny_models import save_implicit_q, save_policy, save_qnet

QUIET = Console(quiet=True)
START, LEFT, RIGHT = (Message("user", "go"), Message("assistant", "left"), Message("assistant", "right"))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def implicit(tmp_path_factory: pytest.TempPathFactory, policy: Path) -> Path:
    reference = save_policy(tmp_path_factory.mktemp("reference"), seed=1)
    return save_implicit_q(tmp_path_factory.mktemp("implicit"), policy, reference)


def scores(scorer: Scorer) -> tuple[float, ...]:
    (result,) = scorer.score([ScoreRequest((START,), (LEFT, RIGHT))])
    return result.q_values


def test_a_value_head_and_an_implicit_q_are_built_alike(tmp_path: Path, policy: Path, implicit: Path) -> None:
    head = build_scorer(str(save_qnet(tmp_path, policy)), Inference())
    ratio = build_scorer(str(implicit), Inference())
    assert isinstance(head, SharedPrefixScorer)
    assert isinstance(ratio, SharedPrefixImplicitScorer)
    assert len(set(scores(head) + scores(ratio))) == 4


def test_evaluate_and_explore_are_guided_by_an_implicit_q(tmp_path: Path, policy: Path, implicit: Path) -> None:
    results = run_evaluate(
        EvaluateConfig(
            output=tmp_path / "evaluation",
            environment=CorridorConfig(count=2),
            policy=str(policy),
            qnet=str(implicit),
            methods=("q-guided",),
            candidates=3,
            seeds=(0,),
            max_steps=2,
            max_tokens=8,
        ),
        console=QUIET,
    )
    assert results.rows[0].scored_tokens > 0
    assert results.config["qnet_sha256"] == sha256_of_q_model(str(implicit), Inference()) != ""
    figures = run_explore(
        ExploreConfig(
            output=tmp_path / "trees",
            environment=CorridorConfig(count=2),
            policy=str(policy),
            guide=str(implicit),
            exploration=Exploration(max_steps=2, max_draws=2, max_tokens=8, policy_prefix_steps=1),
        ),
        console=QUIET,
    )
    assert figures["trees"] == 2


def test_choice_regret_does_not_mix_the_figures_of_two_models(tmp_path: Path, policy: Path) -> None:
    groups = GroupsConfig(
        output=tmp_path / "groups",
        environment=CorridorConfig(count=1),
        policy=str(policy),
        decisions=Decisions(max_steps=1, horizon=1, max_tokens=4),
        continuation=Continuation(by="policy"),
    )
    run_groups(groups, console=QUIET)
    qnet = save_qnet(tmp_path / "qnet", policy)
    config = ChoiceRegretConfig(output=tmp_path / "run", groups=(tmp_path / "groups",), qnet=str(qnet))
    first = run_choice_regret(config)
    assert run_choice_regret(config) == first
    save_qnet(qnet, save_policy(tmp_path / "another", seed=3))
    with pytest.raises(ConfigError, match="qnet_sha256"):
        run_choice_regret(config)


def checkpoint(folder: Path, licence: Licence | None) -> str:
    folder.mkdir()
    config = folder / "config.json"
    config.write_text("{}")
    files = {config.name: sha256_of(config)}
    manifest = Manifest(kind="features", name="shop", licence=licence, files=files)
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    return str(folder)


def test_a_q_model_that_is_not_licensed_is_warned_of(tmp_path: Path) -> None:
    none = checkpoint(tmp_path / "none", Licence(granted=False, reason="it is at chance"))
    unjudged = checkpoint(tmp_path / "unjudged", None)

    assert licence_warning(none) == f"{none} has no licence: it is at chance"
    assert licence_warning(unjudged) == f"{unjudged} was not judged: nothing shows that its choices beat the policy"


def test_a_policy_that_is_none_is_told_what_may_be_named() -> None:
    with pytest.raises(ConfigError, match=r"'rndom'; .*folder.*upstream:NAME.*embedded, expert, random, scripted"):
        build_policy("rndom", Inference(), CorridorConfig())
    assert not sha256_of_policy("random")


def test_a_licensed_q_model_and_a_judge_are_not_warned_of(tmp_path: Path) -> None:
    granted = checkpoint(tmp_path / "granted", Licence(granted=True, reason="it is above"))

    assert licence_warning(granted) == ""
    assert licence_warning("embedded") == ""
    assert licence_warning("votes") == ""


def test_a_job_selects_as_a_server_would_unless_it_is_told(tmp_path: Path) -> None:
    fitted = PriorSection(tau=0.3, greedy_weight=1.0)
    for name, prior in (("fitted", fitted), ("plain", None)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        write_manifest(tmp_path / name, Manifest(name=name, kind="features", prior=prior), packages=())
    known, plain = str(tmp_path / "fitted"), str(tmp_path / "plain")
    assert prior_in_use(known, None, None) == fitted
    assert prior_in_use(known, "argmax", None) is prior_in_use(plain, None, None) is None
    assert prior_in_use(known, "posterior", 0.1) == PriorSection(tau=0.1, greedy_weight=1.0)
    assert prior_in_use(plain, "posterior", None) == PriorSection(tau=DEFAULT_TAU)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"selection": "argmax", "tau": 0.3}, r"tau is 0\.3, .*selection 'argmax'"),
        ({"selection": "posterior"}, "selection is 'posterior', .*Q model"),
        ({"tau": 0.3}, r"tau is 0\.3, .*Q model"),
    ],
)
@pytest.mark.parametrize("config", [CollectConfig, ExploreConfig])
def test_a_selection_that_nothing_makes_is_refused(
    config: type[BaseModel], options: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValidationError, match=said):
        config.model_validate({"output": tmp_path, "environment": CorridorConfig(count=1)} | options)


@pytest.mark.parametrize(("memory", "most"), [(64 * 1024**3, 2 * 1024**3), (8 * 1024**3, 1024**3)])
def test_two_caches_take_at_most_a_quarter_of_a_small_machines_memory(
    memory: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=memory))
    assert Inference().most_cache_bytes == most
    assert Inference(cache_bytes=0).most_cache_bytes == 0
