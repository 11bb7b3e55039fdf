"""Names lead to versions: always to one that is served, and an episode always to the same."""

from typing import Any

import pytest

from qguide.qnet.errors import RoutingError, UnknownModelError
from qguide.server.q_models.registry import AliasTable, choose_arm
from qguide.server.q_models.served import join

SHOP = AliasTable().add("shop@v1", replacing=False)
BOTH = SHOP.add("shop@v2", replacing=False)
SPLIT = BOTH.move("trial", {"shop@v1": 3, "shop@v2": 1})
EPISODES = [f"episode-{n}" for n in range(1000)]


def test_a_name_leads_to_the_first_version_until_it_is_moved() -> None:
    assert BOTH.resolve("shop", None) == "shop@v1"
    assert BOTH.resolve("shop@v2", None) == "shop@v2"
    assert BOTH.move("shop", {"shop@v2": 1}).resolve("shop", None) == "shop@v2"


def test_an_alias_follows_the_name_it_leads_to() -> None:
    default = SHOP.move("default", {"shop": 1})
    swapped = default.add("shop@v2", replacing=True)
    assert default.resolve("default", None) == "shop@v1"
    assert swapped.resolve("default", None) == "shop@v2"
    assert swapped.versions == ("shop@v2",)


def test_an_episode_stays_with_its_arm_and_the_arms_get_their_shares() -> None:
    arms = [SPLIT.resolve("trial", episode) for episode in EPISODES]
    assert arms == [SPLIT.resolve("trial", episode) for episode in EPISODES]
    # Four standard deviations of 1,000 draws at 3 to 1.
    assert 695 <= arms.count("shop@v1") <= 805
    assert set(arms) == {"shop@v1", "shop@v2"}


def test_the_hash_is_the_same_in_every_process() -> None:
    shares = {"a": 1.0, "b": 1.0}
    assert [choose_arm("trial", shares, f"e{n}") for n in range(8)] == list("abbbaaab")


def test_two_splits_do_not_share_their_arms() -> None:
    halves = {"a": 1.0, "b": 1.0}
    same = sum(choose_arm("one", halves, e) == choose_arm("two", halves, e) for e in EPISODES)
    assert 435 <= same <= 565


def test_a_larger_share_takes_no_episode_away_from_the_first_arm() -> None:
    before, after = {"a": 1.0, "b": 9.0}, {"a": 2.0, "b": 8.0}
    kept = [e for e in EPISODES if choose_arm("t", before, e) == "a"]
    assert kept
    assert {choose_arm("t", after, e) for e in kept} == {"a"}


def test_without_an_episode_a_split_gives_its_first_arm() -> None:
    assert SPLIT.resolve("trial", None) == "shop@v1"


def test_an_episode_may_have_half_a_character() -> None:
    assert SPLIT.resolve("trial", "\ud800") in {"shop@v1", "shop@v2"}


def test_a_split_leads_to_all_its_arms() -> None:
    assert SPLIT.move("default", {"trial": 1}).reachable("default") == {"shop@v1", "shop@v2"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: SPLIT.drop("shop@v2"), "^'trial' .*'shop@v2', .* shop@v1$"),
        (lambda: BOTH.drop("shop@v1"), "^'shop' .*'shop@v1', .* shop@v2$"),
        (lambda: SHOP.move("default", {"shop": 1}).drop("shop@v1"), "^'default' .*'shop', .* nothing"),
        (lambda: SPLIT.add("shop@v3", replacing=True), r"^'trial' .*'shop@v1', .*shop@v3 .*replace\b"),
        (lambda: BOTH.shadow("shop", "shop@v2").drop("shop@v2"), "shadow .*'shop' .*'shop@v2', .* shop@v1$"),
        (lambda: SHOP.shadow("cart", "shop"), "^'cart' .*shadow; .* shop$"),
        (lambda: SHOP.add("shop@v1", replacing=False), "^shop@v1 .*version"),
        (lambda: SPLIT.add("trial@v1", replacing=False), "^'trial' .*alias"),
        (lambda: BOTH.move("shop", {"shop@v1": 1, "shop@v2": 1}), "^'shop' .*versions"),
        (lambda: BOTH.move("a", {"a": 1}), "^a → a"),
        (lambda: SPLIT.move("b", {"trial": 1}).move("trial", {"b": 1}), "^trial → b → trial"),
        (lambda: BOTH.move("a", {}), "'a' are {}; .*0$"),
        (lambda: BOTH.move("a", {"shop": 0}), "'a' are {'shop': 0}; .*0$"),
        (lambda: BOTH.move("a", {"shop": float("nan")}), "'a' are {'shop': nan}; .*0$"),
        (lambda: BOTH.move("shop@v9", {"shop": 1}), "^'shop@v9' .* 1 to 64"),
        (lambda: join("shop", "v 1"), "^'shop' and 'v 1' .* 1 to 64"),
    ],
)
def test_a_change_that_would_lead_nowhere_is_refused(change: Any, said: str) -> None:
    with pytest.raises(RoutingError, match=said):
        change()


def test_the_last_version_takes_its_name_and_its_shadow_with_it() -> None:
    routes = BOTH.add("cart@v1", replacing=False).shadow("cart", "shop").drop("cart@v1")
    assert (routes.versions, routes.shadows) == (BOTH.versions, {})
    with pytest.raises(UnknownModelError, match=r"'cart'; .* shop$"):
        routes.resolve("cart", None)


def test_what_is_not_served_cannot_be_dropped() -> None:
    with pytest.raises(UnknownModelError, match=r"'shop'; .* shop@v1$"):
        SHOP.drop("shop")
