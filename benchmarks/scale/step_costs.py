"""Costs of a guided step of the embedded models, measured by playing episodes in this process.

Every episode is played twice, with a prefix cache and without one. The draws are the same, so the
difference is the time for reading what the cache would have had.
"""

import time
from collections.abc import Sequence
from functools import partial
from itertools import accumulate

from benchmarks.scale.config import StepCosts
from qguide.qnet.decision.decision import Guidance
from qguide.qnet.errors import QGuideError
from qguide.qnet.types import Candidate, SampleRequest, Sampling, Scorer, ScoreRequest, ScoreResult
from qguide.training.environment import Suite
from qguide.training.environments.registry import build_suite, environment_config
from qguide.training.rollouts.driver import run_rollouts
from qguide.training.rollouts.episode import Agent, Episode, guided_agent, play_episode, seeded
from qguide.training.rollouts.models import EMBEDDED, Inference, build_policy, build_scorer
from qguide.training.rollouts.rollout import TaskTimings

_CANDIDATES = 5
_MAX_STEPS = 40
_SAMPLING = Sampling(temperature=1.0, first_greedy=True)
_FIRST_GAME = 990_000
"""Seed of the first generated game; the embedded models were not trained on it."""


def measure_costs(*, episodes: int, threads: int) -> StepCosts:
    """Play guided episodes of generated games on the CPU, one at a time.

    Raises:
        EnvironmentFailureError: a game cannot be played.
    """
    suite = build_suite(environment_config({"first_seed": _FIRST_GAME, "count": episodes}))
    try:
        cached = _Played(suite, Inference(threads=threads))
        uncached = _Played(suite, Inference(threads=threads, cache_bytes=0))
    finally:
        suite.close()
    steps, count = tuple(cached.lengths), sum(cached.lengths)
    starts = list(accumulate(steps[:-1], initial=0))
    first_tokens = round(sum(cached.histories[start] for start in starts) / len(starts))
    more = sum(cached.histories) - count * first_tokens
    step_tokens = max(1, round(more / max(1, sum(n * (n - 1) // 2 for n in steps))))
    read_tokens = sum(first_tokens + (length - 1) * step_tokens for length in steps)
    missing = sum(uncached.histories) - read_tokens
    draw_read_s = max(0.0, uncached.draw_s - cached.draw_s) / max(1, missing)
    score_read_s = max(0.0, uncached.score_s - cached.score_s) / max(1, missing)
    return StepCosts(
        source=f"the embedded models with {_CANDIDATES} candidates, CPU time of {threads} threads: "
        f"{len(steps)} generated ALFWorld games with {count} steps",
        draw_s=max(0.0, cached.draw_s - draw_read_s * read_tokens) / count,
        draw_read_s=draw_read_s,
        score_s=max(0.0, cached.score_s - score_read_s * read_tokens) / count,
        score_read_s=score_read_s,
        environment_s=cached.environment_s / count,
        first_tokens=first_tokens,
        step_tokens=step_tokens,
        steps=steps,
    )


class _Played(Scorer):
    """Guided episodes and what they took. CPU time is fair on a busy machine.

    Attributes:
        name: of the models, which this object times.
        lengths: steps of each episode.
        histories: tokens of the history at every step of all episodes.
    """

    name = EMBEDDED

    def __init__(self, suite: Suite, inference: Inference) -> None:
        """Play every task once, one after the other."""
        self._policy = build_policy(EMBEDDED, inference, environment_config({}))
        self._scorer = build_scorer(EMBEDDED, inference)
        self.draw_s = self.score_s = self.environment_s = 0.0
        self.lengths: list[int] = []
        self.histories: list[int] = []
        run_rollouts(
            (
                (task.id, play_episode(partial(suite.make, task), _agent(), max_steps=_MAX_STEPS))
                for task in suite.tasks
            ),
            policy=self,
            scorer=self,
            parallel=1,
            on_done=self._done,
            on_failure=_fail,
        )

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        start_s = time.process_time()
        drawn = self._policy.sample_batch(requests)
        self.draw_s += time.process_time() - start_s
        self.histories += [candidates[0].prompt_tokens for candidates in drawn]
        return drawn

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        start_s = time.process_time()
        scored = self._scorer.score(requests)
        self.score_s += time.process_time() - start_s
        return scored

    def _done(self, _name: str, episode: Episode, spent: TaskTimings) -> None:
        self.lengths.append(len(episode.choices))
        self.environment_s += spent.environment_s


def _agent() -> Agent:
    """The served agent; Q is read at every step, also where all candidates are equal."""
    sampling_at = seeded(_SAMPLING, _FIRST_GAME)
    return guided_agent(lambda step: Guidance(_CANDIDATES, sampling_at(step), always_score=True))


def _fail(_name: str, error: QGuideError) -> None:
    raise error
