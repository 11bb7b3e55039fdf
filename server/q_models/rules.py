"""Rules as Q models: `votes`, `likelihood` and `validity`, alone or before another Q model."""

from collections.abc import Sequence
from typing import Final

from qguide.qnet.scoring.rules import RuleName, compares_draws, result_by_rules, rules_before
from qguide.qnet.types import AsyncScorer, ScoreRequest, ScoreResult
from qguide.server.observability.metered import MeteredScorer
from qguide.server.q_models.registry import Runtime
from qguide.server.q_models.served import ServedQModel

_VERSION: Final = "0"


class RuleQModel(ServedQModel):
    """Rules alone, as one version of a Q model; they run no thread."""

    def __init__(
        self, name: str, version: str | None, rules: Sequence[RuleName], runtime: Runtime
    ) -> None:
        super().__init__(name, version or _VERSION, "rules")
        self.ranks = True
        self._metrics = runtime.metrics
        self.shadow_scorer = _Rules(name, rules)
        self.scorer = MeteredScorer(self.shadow_scorer, runtime.metrics, q_model=self.id)
        runtime.metrics.start_series(self.id)

    def close(self) -> None:
        """Do nothing: it runs no thread."""

    def _close_retired(self) -> None:
        self._metrics.remove_series(self.id)


def put_before(rules: Sequence[RuleName], model: ServedQModel) -> None:
    """Let rules stand before a Q model that has not served yet."""
    model.ranks = model.ranks or compares_draws(rules)
    model.scorer = _Ruled(rules, model.scorer)
    model.shadow_scorer = _Ruled(rules, model.shadow_scorer)


class _Rules:
    def __init__(self, name: str, rules: Sequence[RuleName]) -> None:
        self.name = name
        self._rules = tuple(rules)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Value of each candidate by the last rule, behind the others."""
        return result_by_rules(self._rules, request)


class _Ruled:
    def __init__(self, rules: Sequence[RuleName], scorer: AsyncScorer) -> None:
        self.name = scorer.name
        self._rules = tuple(rules)
        self._scorer = scorer

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Q of each candidate, and the values of the rules."""
        return rules_before(self._rules, request, await self._scorer.score(request))
