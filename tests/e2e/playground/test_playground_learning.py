"""The part of the playground on learning: the sentence, the curve, and an operator's orders."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from qguide.server.episodes.learning_part import LearningArm, ShadowTally
from qguide.server.http.keys import create_key
from qguide.server.learning.group import Group
from qguide.server.learning.lines import EpisodeLine, FitLine
from qguide.server.settings.learning import Rules
from tests.e2e.playground.conftest import Page, served
from tests.unit.server.conftest import FAKES


def learned(folder: Path, *, episodes: int = 150) -> None:
    """The ledger of a group whose guidance has helped."""
    group, chance = Group("_", folder, Rules()), Random(3)
    for number in range(episodes):
        if number == 60:
            group.fitted(FitLine(version=1, episodes=60, licensed=True, reason="better"))
        now = group.progress
        guided = chance.random() < now.share
        tried = now.candidate
        seen = {"decisions": 20, "room": 20, "disagreed": 8}
        outcome = float(chance.random() < (0.95 if guided else 0.35))
        arm = LearningArm(trial=now.trial, guided=guided, share=now.share)
        shadow = ShadowTally(version=1, **seen) if tried else None
        group.end(EpisodeLine(episode=f"e{number}", outcome=outcome, arm=arm, shadow=shadow))
    assert group.progress.phase == "guiding"


@pytest.fixture
def learning(driver: Any, tmp_path: Path) -> Iterator[Page]:
    learned(tmp_path / "learning" / "_")
    given = {"episodes_dir": tmp_path, "admin": True, "learn": True}
    with served(FAKES.model_copy(update=given)) as url:
        yield Page(driver, url)


def test_the_curve_and_the_sentence_are_shown_and_orders_obeyed(learning: Page) -> None:
    page = learning.open("#learning")
    page.until(lambda: "guiding since" in page.text("learning-sentence"))
    assert page.text("learning-facts") == "guiding"
    spoken = page.all("#learning-chart svg")[0].get_attribute("aria-label") or ""
    assert spoken.startswith("Mean outcome, unguided: episodes 1 to 25 ")
    assert "; guided: episodes " in spoken
    assert len(page.all("#learning-chart .turn.guiding")) == 1
    assert "guidance helps" in page.texts("#learning-changes li")[0]

    page.all("#learning-orders button[value=forbid]")[0].click()
    page.until(lambda: page.text("learning-facts") == "collecting, forbidden")
    page.all("#learning-orders button[value=promote]")[0].click()
    page.until(lambda: "nothing can be promoted" in page.text("order-error"))


@pytest.mark.slow
def test_another_key_sees_no_orders_and_no_groups(driver: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    plain, root = create_key(keys, "ada"), create_key(keys, "root", admin=True)
    given = {"episodes_dir": tmp_path, "admin": True, "learn": True, "keys_file": keys}
    learned(tmp_path / "learning" / "ada")
    with served(FAKES.model_copy(update=given)) as url:
        page = Page(driver, url).open("#learning")
        for key, orders in ((plain, False), (root, True)):
            page["key"].clear()
            page["key"].send_keys(key)
            page.all("#key-form button")[0].click()
            page.until(lambda: page.text("learning-sentence"))
            page.until(lambda shown=orders: page["learning-orders"].is_displayed() is shown)
        assert any("ada: guiding" in text for text in page.texts("#learning-group option"))


def test_a_server_that_does_not_learn_has_no_such_part(page: Page) -> None:
    assert not page["tab-learning"].is_displayed()
