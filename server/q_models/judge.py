"""Judges as Q models: `judge:UPSTREAM` in `q_models` prompts a chat model for Q-values.

A judge's version begins with `judge-`, so that it is told from a trained Q model wherever a Q model is named: in
answers, metrics, logs and the records of episodes.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from qguide.qnet.decision.history_window import RequestSize
from qguide.qnet.errors import ConfigError
from qguide.qnet.judging.judge import Judge
from qguide.qnet.judging.settings import JudgeSettings
from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.qnet.scoring.rules import split_rules
from qguide.qnet.types import ScoreRequest, ScoreResult
from qguide.server.q_models.schemas import JudgeCard
from qguide.server.q_models.served import Runtime, ServedPolicy, ServedQModel, join, plain_name
from qguide.server.settings.settings import Settings

JUDGE: Final = "judge:"
VERSION: Final = "judge-"
_VERSION_DIGITS: Final = 12


class JudgeQModel(ServedQModel):
    """A judge as one version of a Q model; its upstream is closed with the other upstreams."""

    kind = "a judge"
    comparable = "name another Q model, or give the judge the mode 'score'"
    countable = "give a judge a `context` in QGUIDE_JUDGES"
    highest_q = 1.0  # what its prompt asks for, read as a share of the scale

    def __init__(self, name: str, version: str, judge: Judge, runtime: Runtime) -> None:
        super().__init__(name, version, "judge", runtime, content=judge.digest)
        self.prompted = JudgeCard(model=judge.model, mode=judge.settings.mode)
        self.context = judge.context
        self.ranks = judge.ranks
        self._judge = judge
        runtime.metrics.start_series(self.id)
        runtime.metrics.start_calls(self.id)

    async def measure(self, request: ScoreRequest) -> RequestSize | None:
        """Estimated tokens of a request; None without a `context` in the settings."""
        return self._judge.size(request)

    async def _score(self, request: ScoreRequest) -> ScoreResult:
        return await self._judge.score(request)


def is_judge(source: str) -> bool:
    """True if an entry of `q_models` names a judge."""
    return source.startswith(JUDGE)


def build_judge(
    source: str, runtime: Runtime, upstreams: Sequence[ServedPolicy], *, name: str, version: str | None
) -> JudgeQModel:
    """Build the judge of an entry of `q_models`; nothing is asked before the first request."""
    if version is not None and not version.startswith(VERSION):
        raise ConfigError(
            f"{name}@{version} in QGUIDE_Q_MODELS is a judge; begin its version with {VERSION!r}, as in "
            f"{name}@{VERSION}{version}, so that it is known as a judge wherever it is named"
        )
    hosted = [one.upstream for one in upstreams if one.upstream]
    upstream, judges = find_upstream(source.removeprefix(JUDGE), hosted), runtime.settings.judges
    judge = Judge(name, upstream, judges.get(f"{name}@{version}") or judges.get(name) or JudgeSettings())
    version = version or f"{VERSION}{judge.digest[:_VERSION_DIGITS]}"
    judge.observe = partial(runtime.metrics.count_call, join(name, version))
    served = JudgeQModel(name, version, judge, runtime)
    served.upstream = upstream.name
    return served


def find_upstream(wanted: str, upstreams: Sequence[OpenAICompatiblePolicy]) -> OpenAICompatiblePolicy:
    """The upstream of that name, or the only one with that model."""
    named = [one for one in upstreams if one.name == wanted]
    found = named or [one for one in upstreams if one.model == wanted]
    if len(found) == 1:
        return found[0]
    served = ", ".join(one.name for one in upstreams) or "none"
    reason = "several upstreams have that model" if found else "no upstream has that name or model"
    raise ConfigError(
        f"the judge is {JUDGE + wanted!r}, but {reason}; the upstreams are {served}: name one, or add one to "
        "QGUIDE_UPSTREAMS or with --upstream"
    )


def check_judges(settings: Settings) -> None:
    """Check that each entry of `judges` belongs to a judge."""
    known = {
        name
        for q, source in settings.served_q_models.items()
        if is_judge(split_rules(source)[1])
        for name in (q, plain_name(q))
    }
    if unknown := sorted(settings.judges.keys() - known):
        raise ConfigError(
            f"QGUIDE_JUDGES names {unknown[0]!r}, which is not a judge; name an entry of QGUIDE_Q_MODELS whose value "
            f"begins with {JUDGE!r}"
        )
