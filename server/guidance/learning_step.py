"""A guided step's part in learning: how its episode is played, and what is noted of the choice."""

import json
from collections import Counter
from functools import partial
from hashlib import sha256
from itertools import takewhile
from typing import Any

import structlog

from qguide.qnet.chat_messages import effects_of, tools_in
from qguide.qnet.decision.decision import Decision
from qguide.qnet.decision.selection import EXPLORED, distinct, prior_of, select
from qguide.qnet.types import INSTRUCTING, ScoreRequest
from qguide.server.episodes.learning_part import Shadowed
from qguide.server.episodes.state import ServedEpisode
from qguide.server.guidance.step_options import distance_of, domain_of, selection_rule
from qguide.server.guidance.step_types import GuidedStepRequest
from qguide.server.learning.live_group import LearningStep, Opening
from qguide.server.learning.service import Learning
from qguide.server.q_models.served import ServedQModel
from qguide.server.settings.settings import Settings

_log = structlog.get_logger(__name__)


async def play_of(asked: GuidedStepRequest, episode: ServedEpisode | None, learning: Learning) -> LearningStep:
    """The step's part in learning; none if the caller chooses the Q model."""
    if asked.options.q_model is not None:
        return LearningStep()
    return await learning.play(asked.options.episode_id, episode, opening=partial(_opening, asked))


async def shadowed(
    asked: GuidedStepRequest, decision: Decision, play: LearningStep, settings: Settings, *, greedy: bool
) -> Shadowed | None:
    """The choice of the version in the shadow; None if there is none, or it fails.

    It is compared with what was chosen, and where the step explored, with the likeliest.
    """
    model, messages = play.shadow, [candidate.message for candidate in decision.candidates]
    if model is None or len(messages) < 2:
        return None
    prior = decision.prior if decision.reason == EXPLORED else None
    actual = prior.likeliest if prior else decision.chosen
    try:
        chosen = await _shadow_choice(asked, decision, model, settings, greedy=greedy)
    except Exception as error:  # its message is not logged, because it may hold a prompt
        reason = type(error).__name__
        _log.warning("shadow_failed", shadow=model.id, reason=reason)
        return None
    effects = effects_of(messages)
    taken = actual if chosen is None else chosen
    return Shadowed(
        version=play.shadow_version,
        chosen=messages[taken].text,
        room=len(set(effects)) > 1,
        outside=chosen is None,
        disagreed=effects[taken] != effects[actual],
    )


async def _shadow_choice(
    asked: GuidedStepRequest, decision: Decision, model: ServedQModel, settings: Settings, *, greedy: bool
) -> int | None:
    """Index of the candidate that a version would have chosen; None outside its domain."""
    history = asked.read_history
    domain = domain_of(model, asked.options.out_of_domain, settings)
    distance = await distance_of(domain, history)
    if distance is not None and distance.outside:
        return None
    messages = [candidate.message for candidate in decision.candidates]
    unique = distinct(messages)
    counts = Counter(unique.index)
    logprobs = {one.message: one.logprob for one in decision.candidates}
    result = await model.score_uncharged(
        ScoreRequest(
            history,
            unique.messages,
            counts=tuple(counts[place] for place in range(len(unique.messages))),
            logprobs=tuple(logprobs[message] for message in unique.messages),
            tools=tools_in(asked.sampling.parameters),
        )
    )
    rule = selection_rule(asked.options, settings, model, prior=asked.options.prior)
    prior = prior_of(
        messages,
        by=rule.prior,
        logprobs=[one.logprob for one in decision.candidates],
        tokens=[one.completion_tokens for one in decision.candidates],
        greedy=0 if greedy else None,
        greedy_weight=rule.greedy_weight,
    )
    q_values = unique.of_each(result.q_values)
    tau = rule.tau if rule.selection == "posterior" else None
    return select(messages, q_values, prior=prior, tau=tau).chosen


def propensity_of(decision: Decision) -> float:
    """Probability of the choice among the candidates, given whether the step explored."""
    if decision.reason != EXPLORED:
        return 1.0
    return 1 / len(set(effects_of([candidate.message for candidate in decision.candidates])))


def _opening(asked: GuidedStepRequest) -> Opening:
    system = [message.content for message in asked.history if message.role in INSTRUCTING]
    before = takewhile(lambda message: message.role != "assistant", asked.history)
    task = [message.text for message in before if message.role not in INSTRUCTING]
    return Opening(prompt=_hash([system, tools_in(asked.sampling.parameters)]), task=_hash(task))


def _hash(value: Any) -> str:
    text = json.dumps(value, default=str, sort_keys=True)
    return sha256(text.encode()).hexdigest()[:16]
