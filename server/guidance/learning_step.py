"""A guided step's part in learning: how its episode is played, and what is noted of the choice."""

import json
from dataclasses import replace
from functools import partial
from hashlib import sha256

from qguide.qnet.action_key import effects_of
from qguide.qnet.decision.decision import Decision
from qguide.qnet.openai_messages import tools_in
from qguide.server.episodes.state import Episode
from qguide.server.guidance.step_types import GuidedStepRequest
from qguide.server.learning.service import Learning, Play
from qguide.server.messages.history import INSTRUCTING


async def play_of(
    asked: GuidedStepRequest, episode: Episode | None, learning: Learning | None
) -> Play:
    """The step's part in learning; none if the caller chooses the Q model."""
    if learning is None or asked.options.q_model is not None:
        return Play()
    prompt = partial(_prompt, asked)
    return await learning.play(asked.options.episode_id, episode, prompt=prompt)


def exploring(asked: GuidedStepRequest, play: Play) -> GuidedStepRequest:
    """The request, of which a random candidate is taken where no Q model chooses one."""
    several = asked.num_candidates > asked.n and asked.no_q_model is not None
    return replace(asked, explore=play.explore) if several else asked


def propensity_of(decision: Decision) -> float:
    """Probability of the choice among the candidates, given whether the step explored."""
    if decision.reason != "explored":
        return 1.0
    return 1 / len(set(effects_of([candidate.message for candidate in decision.candidates])))


def _prompt(asked: GuidedStepRequest) -> str:
    """Hash of the system prompt and the tools."""
    system = [message.content for message in asked.history if message.role in INSTRUCTING]
    tools = tools_in(asked.sampling.parameters)
    text = json.dumps([system, tools], default=str, sort_keys=True)
    return sha256(text.encode()).hexdigest()[:16]
