"""Ensembles: several Q models in one checkpoint."""

from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest

from qguide.qnet.errors import CheckpointError
from qguide.qnet.features.domain import DOMAIN
from qguide.qnet.models.checkpoint import LoadedEnsemble, load_q_model, load_qnet
from qguide.qnet.models.ensemble import load_domain, save_ensemble, scales_of
from qguide.qnet.models.manifest import MANIFEST, Licence, Manifest, PriorSection, read_manifest
from qguide.qnet.scoring.build import build_naive_scorer, build_serving_scorer
from qguide.qnet.types import History, Message, ScoreRequest
from qguide.server.q_models.build import require_licence
from qguide.training.licence.domain import fit_domain, put_domain
from qguide.training.rollouts.models import Inference, build_scorer
from tests.support.tiny_models import save_features, save_implicit_q, save_policy, save_qnet

REQUEST = ScoreRequest(
    (Message("user", "take the mug"),), (Message("assistant", "go to desk"), Message("assistant", "take mug"))
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("saved")
    policies = [save_policy(folder / f"policy{seed}", seed=seed) for seed in range(3)]
    return [save_qnet(folder / f"q{i}", policy) for i, policy in enumerate(policies)]


@pytest.fixture
def members(tmp_path: Path, saved: list[Path]) -> list[Path]:
    copytree(saved[0].parent, tmp_path, dirs_exist_ok=True)
    return [tmp_path / folder.name for folder in saved]


def _q_values(folder: Path) -> tuple[float, ...]:
    [result] = build_scorer(str(folder), Inference()).score([REQUEST])
    return result.q_values


def test_q_is_the_mean_over_the_members(members: list[Path], tmp_path: Path) -> None:
    apart = [_q_values(member) for member in members]
    assert len({values[0] for values in apart}) == 3

    save_ensemble(tmp_path / "mean", members, name="three")

    means = [sum(values) / 3 for values in zip(*apart, strict=True)]
    assert _q_values(tmp_path / "mean") == pytest.approx(means, abs=1e-5)


def test_a_served_ensemble_shares_its_budget_and_counts_every_member(members: list[Path], tmp_path: Path) -> None:
    save_ensemble(tmp_path / "mean", members, name="three")
    loaded = load_q_model(tmp_path / "mean")
    assert isinstance(loaded, LoadedEnsemble)
    assert len(list(loaded.model.parameters())) == 3 * len(list(load_qnet(members[0]).model.parameters()))
    scorer = build_serving_scorer(loaded, cache_bytes=1 << 24, tokens_per_forward=64, full_sequences=False)

    [cold] = scorer.score([REQUEST])
    [warm] = scorer.score([REQUEST])

    assert warm.q_values == pytest.approx(cold.q_values, abs=1e-5)
    assert cold.cached_tokens == 0
    assert warm.cached_tokens > 0
    assert warm.cached_tokens % 3 == 0
    assert scorer.cache.nbytes > 0
    scorer.close()
    assert scorer.cache.nbytes == 0


def test_the_manifest_describes_all_members(members: list[Path], tmp_path: Path) -> None:
    manifest = save_ensemble(tmp_path / "mean", members, name="three")

    assert (manifest.kind, manifest.name, manifest.read_at) == ("ensemble", "three", "last_token")
    assert "member-2/model.safetensors" in manifest.files


def judged(member: Path, licence: Licence | None, prior: PriorSection | None = None) -> None:
    """Write a verdict into a member's manifest."""
    manifest = Manifest.model_validate_json((member / MANIFEST).read_bytes())
    told = manifest.model_copy(update={"licence": licence, "prior": prior})
    (member / MANIFEST).write_text(told.model_dump_json())


GRANTED = Licence(granted=True, reason="+0.2")
REFUSED = Licence(granted=False, reason="+0.0 (-0.1 to +0.1)")


def test_an_ensemble_has_a_licence_only_if_each_member_has_one(members: list[Path], tmp_path: Path) -> None:
    verdicts: list[Licence | None] = []
    for name, last in (("granted", GRANTED), ("refused", REFUSED), ("unjudged", None)):
        for member, licence in zip(members, (GRANTED, GRANTED, last), strict=True):
            judged(member, licence)
        manifest = save_ensemble(tmp_path / name, members, name=name)
        verdicts.append(manifest.licence)
        assert manifest.unjudged == ("" if last else "its member 2 (tiny-q) was not judged")

    granted, refused, unjudged = verdicts
    assert granted is not None
    assert granted.granted
    assert unjudged is None
    assert refused is not None
    assert refused.reason == f"its member 2 (tiny-q) has none: {REFUSED.reason}"
    with pytest.raises(CheckpointError, match=r"refused .*licence: .* 2 \(tiny-q\)"):
        require_licence(read_manifest(tmp_path / "refused"), "refused", unlicensed=False)


def test_an_ensembles_posterior_is_the_mean_of_its_members_posteriors(members: list[Path], tmp_path: Path) -> None:
    for member, tau in zip(members, (0.1, 0.3, None), strict=True):
        judged(member, GRANTED, None if tau is None else PriorSection(tau=tau, greedy_weight=0.5))

    prior = save_ensemble(tmp_path / "mean", members, name="three").prior

    # Q1 + Q2 + Q3 + (0.1 + 0.3) (log prior + 0.5 greedy), divided by three.
    assert prior is not None
    assert (prior.tau, prior.greedy_weight) == pytest.approx((0.4 / 3, 0.5))

    judged(members[2], GRANTED, PriorSection(tau=0.1, by="likelihood"))
    mixed = save_ensemble(tmp_path / "mixed", members, name="three")
    assert (mixed.prior, mixed.licence) == (None, None)
    assert "different priors" in mixed.unjudged


def state(text: str) -> History:
    return (Message("user", text),)


def test_a_state_is_in_an_ensembles_domain_if_it_is_in_each_members(members: list[Path], tmp_path: Path) -> None:
    desk, shop = state("take the mug from the desk"), state("buy a red shirt in the shop")
    own = ([desk, shop], [desk])
    for member, states in zip(members[:2], own, strict=True):
        manifest = Manifest.model_validate_json((member / MANIFEST).read_bytes())
        put_domain(member, manifest, fit_domain([("", one) for one in states]))
    save_ensemble(tmp_path / "mean", members, name="three")

    domain = load_domain(tmp_path / "mean")
    assert domain is not None
    assert not domain.distance(desk).outside
    assert domain.distance(shop).outside
    save_ensemble(tmp_path / "without", [members[2], members[2]], name="two")
    assert load_domain(tmp_path / "without") is None
    assert (tmp_path / "mean" / "member-0" / DOMAIN).is_file()


def test_one_member_is_no_ensemble(members: list[Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"two .* 1$"):
        save_ensemble(tmp_path / "mean", members[:1], name="one")


def test_a_folder_that_exists_is_left_alone(members: list[Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="q0 exists"):
        save_ensemble(members[0], members, name="three")


@pytest.fixture
def kinds(members: list[Path], tmp_path: Path) -> list[Path]:
    """A Q model without a network, a QNet and an implicit Q."""
    policy = tmp_path / "policy0"
    return [save_features(tmp_path / "features"), members[0], save_implicit_q(tmp_path / "implicit", policy, policy)]


def test_members_of_several_kinds_weigh_by_their_spreads(kinds: list[Path], tmp_path: Path) -> None:
    features, qnet, implicit = map(_q_values, kinds)

    manifest = save_ensemble(tmp_path / "sum", kinds, name="sum", spreads=(0.5, 0.25, 2.0))

    sums = [(a + 2 * b + c / 4) / 3 for a, b, c in zip(features, qnet, implicit, strict=True)]
    loaded = load_q_model(tmp_path / "sum")
    [reference] = build_naive_scorer(loaded).score([REQUEST])
    assert reference.q_values == pytest.approx(sums, abs=1e-5)
    scorer = build_serving_scorer(loaded, cache_bytes=1 << 24, tokens_per_forward=64, full_sequences=False)
    for _ in range(2):
        assert scorer.score([REQUEST])[0].q_values == pytest.approx(sums, abs=1e-5)
    assert (manifest.label_range, manifest.read_at) == (None, "last_token")
    assert manifest.metrics == {"scale_of_0": 1.0, "scale_of_1": 2.0, "scale_of_2": 0.25}


def test_the_temperature_of_a_sum_is_of_its_scaled_values(kinds: list[Path], tmp_path: Path) -> None:
    for member, tau in zip(kinds[:2], (0.1, 0.3), strict=True):
        judged(member, GRANTED, PriorSection(tau=tau, greedy_weight=0.5))

    prior = save_ensemble(tmp_path / "sum", kinds[:2], name="sum", spreads=(0.5, 0.25)).prior

    # Q1 + 2 Q2 + (0.1 + 2 * 0.3) (log prior + 0.5 greedy), divided by two.
    assert prior is not None
    assert (prior.tau, prior.greedy_weight) == pytest.approx((0.35, 0.5))


def test_q_models_without_a_network_make_an_ensemble_that_reads_what_they_read(tmp_path: Path) -> None:
    alike = [save_features(tmp_path / f"features{seed}", seed=seed) for seed in range(2)]
    manifest = save_ensemble(tmp_path / "mean", alike, name="mean")

    means = [(a + b) / 2 for a, b in zip(*map(_q_values, alike), strict=True)]
    assert _q_values(tmp_path / "mean") == pytest.approx(means, abs=1e-5)
    assert manifest.may_read_observation
    answered = replace(REQUEST, observations=((Message("user", "you see a mug"),),) * 2)
    apart = [build_scorer(str(one), Inference()).score([answered])[0].q_values for one in (*alike, tmp_path / "mean")]
    assert apart[2] == pytest.approx([(a + b) / 2 for a, b in zip(*apart[:2], strict=True)], abs=1e-5)


def test_values_of_different_scales_are_not_averaged_without_one(kinds: list[Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"implicit .*kind 'implicit-q', .*'qnet', .*--groups"):
        save_ensemble(tmp_path / "mean", kinds[1:], name="mixed")
    with pytest.raises(CheckpointError, match=r"implicit .*state .*scale; .*groups"):
        save_ensemble(tmp_path / "mean", kinds[1:], name="mixed", spreads=(0.5, 0.0))

    manifest = kinds[1] / MANIFEST
    rewarded = Manifest.model_validate_json(manifest.read_bytes())
    manifest.write_text(rewarded.model_copy(update={"target": "reward"}).model_dump_json())
    with pytest.raises(CheckpointError, match=r"q0 .*target 'reward', .*q1 .*'', .*--groups"):
        save_ensemble(tmp_path / "mean", [tmp_path / "q1", kinds[1]], name="mixed")
    assert save_ensemble(tmp_path / "mean", [tmp_path / "q1", kinds[1]], name="mixed", spreads=(1, 2)).target


def test_networks_that_read_at_different_places_are_refused(members: list[Path], tmp_path: Path) -> None:
    observing = save_qnet(tmp_path / "observing", tmp_path / "policy0", reads_observation=True)
    with pytest.raises(CheckpointError, match=r"read_at 'observation', .*'last_token'"):
        save_ensemble(tmp_path / "mean", [members[0], observing], name="mixed", spreads=(1, 2))


def test_a_configuration_of_another_number_is_refused(kinds: list[Path], tmp_path: Path) -> None:
    save_ensemble(tmp_path / "sum", kinds, name="sum", spreads=(0.5, 0.25, 2.0))
    with pytest.raises(CheckpointError, match=r"sum .* 2 members, .*config\.json .* 3 .* 3 scales"):
        scales_of(tmp_path / "sum", 2)
    (tmp_path / "sum" / "config.json").write_text('{"members": 3, "scales": [1, -1, 1]}')
    with pytest.raises(CheckpointError, match=r"sum/config\.json .*EnsembleConfig\nscales\.1\n"):
        scales_of(tmp_path / "sum", 3)


def test_a_policy_is_no_member(members: list[Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"policy0 .*manifest\.json; .*QNet"):
        save_ensemble(tmp_path / "mean", [members[0], tmp_path / "policy0"], name="mixed")


def test_a_member_that_was_changed_is_refused(members: list[Path], tmp_path: Path) -> None:
    save_ensemble(tmp_path / "mean", members, name="three")
    config = tmp_path / "mean" / "member-1" / "config.json"
    config.write_text(config.read_text() + " ")

    with pytest.raises(CheckpointError, match=r"member-1/config\.json .*sha256"):
        load_q_model(tmp_path / "mean")


def test_a_member_that_was_removed_is_refused(members: list[Path], tmp_path: Path) -> None:
    save_ensemble(tmp_path / "mean", members, name="three")
    (tmp_path / "mean" / "member-2").rename(tmp_path / "elsewhere")

    with pytest.raises(CheckpointError, match=r"member-2/.* manifest .*folder"):
        load_q_model(tmp_path / "mean")


def test_a_member_that_was_added_is_refused(members: list[Path], tmp_path: Path) -> None:
    save_ensemble(tmp_path / "mean", members[:2], name="two")
    (tmp_path / "mean" / "member-2").symlink_to(members[2])

    with pytest.raises(CheckpointError, match=r"member-2 .*sha256"):
        load_q_model(tmp_path / "mean")
