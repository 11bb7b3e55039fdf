"""The guided agent that `evaluate` plays is the one that `/v1/act` serves."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.qnet.types import Sampling
from qguide.server.app import create_app
from qguide.server.settings.settings import Settings
from qguide.training.environments.alfworld.bundle import AlfWorldConfig
from qguide.training.environments.registry import build_selected_suite
from qguide.training.evaluation.methods import Play, adaptive, q_guided, q_posterior
from qguide.training.rollouts.driver import run_together
from qguide.training.rollouts.episode import Agent, Episode, derived_seed, play_episode
from qguide.training.rollouts.models import EMBEDDED, Inference, build_policy, build_scorer, fitted_prior_of

SEED = 3
PLAY = Play(candidates=5, sampling=Sampling(temperature=1.8), greedy_candidate=True, max_steps=7)
TASKS = AlfWorldConfig(first_seed=77, count=1)


def fitted_posterior(play: Play, seed: int, task_id: str) -> Agent:
    """q-posterior with what the Q model's manifest says, as `evaluate` has it without a setting."""
    fitted = fitted_prior_of(EMBEDDED)
    assert fitted is not None
    weighed = replace(play, tau=fitted.tau, prior=fitted.by, greedy_weight=fitted.greedy_weight)
    return q_posterior(weighed, seed, task_id)


def evaluated(method: Callable[[Play, int, str], Agent]) -> dict[str, Episode]:
    """Episodes as `evaluate` plays them, by task."""
    suite = build_selected_suite(TASKS)
    inference = Inference()
    policy = build_policy(EMBEDDED, inference, TASKS)
    scorer = build_scorer(EMBEDDED, inference)
    episodes: dict[str, Episode] = {}
    for task in suite.tasks:
        # One at a time, as the server is asked: another batch rounds otherwise, and draws differ.
        agent = method(PLAY, SEED, task.id)
        played = play_episode(partial(suite.make, task), agent, max_steps=PLAY.max_steps)
        [episodes[task.id]] = run_together([played], policy=policy, scorer=scorer)
    return episodes


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (fitted_posterior, {}),
        pytest.param(q_guided, {"selection": "argmax"}, marks=pytest.mark.slow),
        (adaptive, {"selection": "argmax", "adaptive": True}),
    ],
)
def test_a_served_step_is_the_evaluated_one(method: Callable[[Play, int, str], Agent], options: dict[str, Any]) -> None:
    guided_steps = draws_saved = 0
    with TestClient(create_app(Settings()), base_url="http://127.0.0.1") as client:
        for task_id, episode in evaluated(method).items():
            turns = [{"role": m.role, "content": m.content} for m in episode.messages]
            for step, choice in enumerate(episode.choices):
                answer = client.post(
                    "/v1/act",
                    json={
                        "messages": turns[: 1 + 2 * step],
                        "num_candidates": PLAY.candidates,
                        "temperature": PLAY.sampling.temperature,
                        "greedy_candidate": True,
                        **options,
                        "episode_id": task_id,
                        "seed": derived_seed(SEED, task_id, step),
                    },
                ).json()
                assert choice.decision is not None
                served = [candidate["message"]["content"] for candidate in answer["candidates"]]
                drawn = [candidate.message.content for candidate in choice.decision.candidates]
                assert served == drawn
                assert answer["action"] == choice.reply
                assert (answer["reason"], answer["tau"]) == (choice.decision.reason, choice.decision.tau)
                draws_saved += choice.decision.draws_saved
                guided_steps += choice.decision.q_values is not None
    assert guided_steps >= 5, "too few steps with a choice to say anything"
    assert (draws_saved > 0) == ("adaptive" in options)
