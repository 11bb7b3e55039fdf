"""Cost of learning: what is extra, by whose word, and what a budget stops."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

import pytest
from pydantic import TypeAdapter

from qguide.qnet.decision.decision import Decision, StepUsage
from qguide.qnet.decision.threshold import ActionTaken, BelowThreshold
from qguide.qnet.types import Candidate, Message
from qguide.qnet.work import Prices, TokenUsage
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.episodes.learning_part import LearningArm
from qguide.server.guidance.step_types import StepPrices, cost_of, extra_of
from qguide.server.learning import phase_changes
from qguide.server.learning.group import Group
from qguide.server.learning.lines import EpisodeLine, PhaseLine, SpentLine
from qguide.server.learning.progress import Progress
from qguide.server.learning.service import Learning
from qguide.server.learning.status_body import state_of
from qguide.server.learning.tally import Spending, Spent
from qguide.server.settings.learning import LearningBudget, Rules
from qguide.server.settings.settings import Settings
from tests.unit.server.conftest import Serve
from tests.unit.server.learning.scripted_agent import play, state

PRICES = Prices(prompt=1.0, completion=10.0, cached_prompt=0.5)
OWN = StepPrices(PRICES)


def decision(drawn: int, **usage: float) -> Decision:
    """A step of a prompt of 100 tokens."""
    candidate = Candidate(Message("assistant", "a"), 10, prompt_tokens=100)
    spent = {"scored_tokens": 0, "cached_tokens": 0} | usage
    return Decision(0, "argmax", (candidate,) * drawn, None, StepUsage(**spent))  # type: ignore[arg-type]


def test_one_candidate_costs_nothing_extra() -> None:
    assert extra_of(decision(1, prompt_tokens=100, completion_tokens=10), OWN) == Spent()


@pytest.mark.parametrize(
    ("read", "cached", "tokens", "cost"),
    [(100, 0, 30, 300), (400, 0, 330, 600), (400, 300, 330, 450)],
    ids=["one request", "a request each", "read from the cache"],
)
def test_extra_is_what_one_candidate_would_not_have_cost(read: int, cached: int, tokens: int, cost: float) -> None:
    step = decision(4, prompt_tokens=read, completion_tokens=40, cached_prompt_tokens=cached)
    assert extra_of(step, OWN) == Spent(tokens, cost / 1e6)


def test_the_word_of_the_upstream_goes_before_prices() -> None:
    step = decision(4, prompt_tokens=100, completion_tokens=40, cost=0.08)
    assert cost_of(TokenUsage(100, 40, cost=0.08), PRICES) == 0.08
    assert cost_of(TokenUsage(100, 40), None) is None
    assert extra_of(step, StepPrices()).cost == pytest.approx(0.06)


def test_what_a_step_escalated_to_is_extra_at_its_own_price() -> None:
    """Four candidates of the policy in one request, and one of a policy at ten times its price."""
    strong = ActionTaken("escalate", "raised", 1.0, (4,), TokenUsage(100, 10))
    below = BelowThreshold(0.5, 0.0, (strong,))
    step = replace(decision(5, prompt_tokens=200, completion_tokens=50), below_threshold=below)
    dear = Prices(prompt=10.0, completion=100.0)
    extra = extra_of(step, StepPrices(PRICES, dear))
    assert extra.tokens == 30 + 110
    assert extra.cost == pytest.approx((300 + 2000) / 1e6)


def test_spending_is_of_the_latest_period() -> None:
    spending = Spending()
    for hour in range(30):
        spending.add(SpentLine(tokens=1, cost=0.5, at=3600.0 * hour))
    assert spending.since(3600.0 * 29) == Spent(1, 0.5)
    assert spending.since(0.0) == Spent(25, 12.5)
    saved = TypeAdapter(Spending).dump_python(spending) | {"all": {"tokens": 30, "cost": 15.0}}  # as once
    assert TypeAdapter(Spending).validate_python(saved) == spending


def test_a_gain_that_only_rounding_left_has_no_price() -> None:
    progress = Progress(Rules())
    progress.apply(phase_changes.begun(progress, 1, "better"))
    for number, outcome in enumerate((0.3333, 1 / 3) * 2):
        arm = LearningArm(trial=1, guided=number % 2 == 1, share=0.5)
        tokens = 300 if arm.guided else 100
        progress.apply(EpisodeLine(episode=str(number), outcome=outcome, arm=arm, prompt_tokens=tokens))
    found = state_of("_", progress)
    assert 0 < found.difference.estimate < 1e-4
    assert found.cost.tokens_per_success is None
    assert "+200 tokens an episode" in found.sentence
    assert "gained" not in found.sentence


def test_the_state_tells_the_cost_of_a_success_gained() -> None:
    progress = Progress(Rules(budget=LearningBudget(tokens=50, period="hour")))
    progress.apply(phase_changes.begun(progress, 1, "better"))
    for number in range(40):
        guided = number % 2 == 0
        line = EpisodeLine(
            episode=str(number),
            outcome=float(guided or number % 4 == 1),
            arm=LearningArm(trial=1, guided=guided, share=0.5),
            prompt_tokens=300 if guided else 100,
            completion_tokens=90 if guided else 30,
            cost=0.04 if guided else 0.01,
        )
        progress.apply(line)
    found = state_of("_", progress, spent=Spent(60, 0.1))
    assert (found.cost.tokens, found.cost.tokens_per_success) == (260, 520)
    assert found.cost.cost == pytest.approx(0.03)
    assert found.cost.cost_per_success == pytest.approx(0.06)
    assert found.cost.spent
    assert "+260 tokens, +0.03 in cost an episode, 520 (0.06) for each success" in found.sentence
    assert "the budget of 50 tokens an hour is spent" in found.sentence


@pytest.fixture
def numbers() -> Iterator[int]:
    return count()


def test_a_spent_budget_stops_the_draws_and_not_the_agent(
    serve: Serve, settings: Settings, upstream: FakeUpstream, numbers: Iterator[int]
) -> None:
    given = {"learn_exploration": 1.0, "learn_budget_tokens": 60}
    client = serve(settings.model_copy(update=given))
    chance = Random(0)
    while not state(client)["cost"]["spent"]:
        play(client, next(numbers), chance)
    explored = state(client)["unguided"]["episodes"]
    assert 0 < explored < 20

    body = {
        "model": "default",
        "messages": [{"role": "user", "content": "Find the ring."}],
        "qguide": {"episode_id": "late"},
    }
    answer = client.post("/v1/chat/completions", json=body).json()
    assert answer["qguide"]["num_candidates"] == 1
    assert any("the budget of learning (60 tokens a day)" in w for w in answer["qguide"]["warnings"])
    client.post("/v1/episodes/late/outcome", json={"reward": 1.0})
    found = state(client)
    assert found["unguided"]["episodes"] == explored
    assert found["episodes"] == explored + 1
    assert "so one candidate a step is drawn" in found["sentence"]


def test_a_budget_is_spent_while_that_is_being_noted(
    serve: Serve, settings: Settings, numbers: Iterator[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve(settings.model_copy(update={"learn_exploration": 1.0, "learn_budget_tokens": 60}))
    learning: Learning = client.app.state.learning  # type: ignore[attr-defined]
    end, found = Group.end, []

    def watched(group: Group, line: EpisodeLine | SpentLine) -> list[PhaseLine]:
        if isinstance(line, SpentLine):
            [live] = learning._groups.values()
            found.append((live.over_budget(learning.rules.budget), live.spent.tokens == line.tokens))
        return end(group, line)

    monkeypatch.setattr(Group, "end", watched)
    # No step of the server's own time is noted before all is spent.
    monkeypatch.setattr(learning, "_notes_at_s", float("inf"))
    chance = Random(0)
    while not (before := state(client)["cost"])["spent"]:
        play(client, next(numbers), chance)
    assert client.portal is not None
    client.portal.call(learning._note_spent)
    assert found == [(True, True)]
    assert state(client)["cost"] == before


def _noted_tokens(ledger: Path) -> int:
    lines = [line for line in ledger.read_text().splitlines(keepends=True) if '"spent"' in line and line.endswith("\n")]
    return sum(SpentLine.model_validate_json(line).tokens for line in lines)


def test_a_replica_and_a_restart_know_what_was_spent(
    serve: Serve, settings: Settings, numbers: Iterator[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qguide.server.learning.service._NOTE_S", 0.0)
    given = {"learn_exploration": 1.0, "learn_budget_tokens": 60}
    client = serve(settings.model_copy(update=given))
    chance = Random(0)
    while not state(client)["cost"]["spent"]:
        play(client, next(numbers), chance)
    ledger = settings.episodes_dir or Path()
    # What a step spends is noted with the end of an episode, in a line of its own.
    while _noted_tokens(ledger / "learning" / "_" / "ledger.jsonl") < given["learn_budget_tokens"]:
        play(client, next(numbers), chance)
    assert state(serve(settings.model_copy(update=given)))["cost"]["spent"]
