"""Q models without a model: rules (`votes`, `likelihood`, `validity`), and `none`.

`none` is the Q model of steps that no Q model guides. It stands where the settings name no Q model for a policy, and
may be named itself, as the arm of a split whose episodes are the control. The embedded Q model was trained in one text
game, so it is the default of the embedded policy alone.
"""

from collections.abc import Sequence
from typing import Final, NoReturn

from qguide.qnet.errors import UnknownModelError
from qguide.qnet.scoring.rules import RuleName, result_by_rules
from qguide.qnet.types import ScoreRequest, ScoreResult
from qguide.server.q_models.served import Runtime, ServedQModel
from qguide.server.settings.settings import EMBEDDED, NONE, Settings

_VERSION: Final = "0"


class NoQModel(ServedQModel):
    """A Q model that refuses every score, says what to do where it was not asked for, and is not measured."""

    def __init__(self, name: str, version: str | None, runtime: Runtime) -> None:
        super().__init__(name, version or _VERSION, NONE, runtime)
        settings = runtime.settings
        asked_for = f"the Q model {name!r} scores nothing, and steps that name it are unguided"
        self.refusal = asked_for if settings.q_models else _not_named(settings)

    async def score(self, request: ScoreRequest) -> NoReturn:
        """Raise the reason."""
        raise UnknownModelError(self.refusal)

    _score = score


def unguided_policies(settings: Settings) -> str:
    """The policies that no Q model guides, and the remedy; "" if there are none."""
    if settings.q_models or NONE not in settings.served_q_models:
        return ""
    own = settings.policy == EMBEDDED
    names = ", ".join(settings.upstreams) if own else settings.policy
    return f"{_not_named(settings)}; {'until then ' if settings.learn else ''}unguided: {names}"


def _not_named(settings: Settings) -> str:
    if settings.learn:
        return (
            "a Q model is learned from the outcomes of episodes, and guides once a trial has shown that it helps; GET "
            "/v1/learning says what is missing"
        )
    upstream = settings.policy if settings.policy in settings.upstreams else ""
    judge = upstream or next(iter(settings.upstreams), "UPSTREAM")
    return (
        "no Q model is named for this policy, so nothing chooses among candidates; name one with --scorer (--scorer "
        f"judge:{judge} asks that model for scores), in QGUIDE_Q_MODELS, or as q_model of the request"
    )


class RuleQModel(ServedQModel):
    """Rules alone, as one version of a Q model; they run no thread."""

    kind = "a rule"
    ranks = True

    def __init__(self, name: str, version: str | None, rules: Sequence[RuleName], runtime: Runtime) -> None:
        super().__init__(name, version or _VERSION, "rules", runtime)
        self.only_votes = tuple(rules) == ("votes",)
        self._own = tuple(rules)
        runtime.metrics.start_series(self.id)

    async def _score(self, request: ScoreRequest) -> ScoreResult:
        return result_by_rules(self._own, request)
