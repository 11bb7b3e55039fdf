"""The Q models of an evaluation: one that guides, and one that values what was tried."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from qguide.qnet.errors import ConfigError
from qguide.qnet.types import Scorer, ScoreRequest, ScoreResult
from qguide.training.evaluation.records import GUIDED, VALUING

COMPARING: Final = frozenset({"adaptive"}) | VALUING
"""Methods that compare Q of different states."""


@dataclass(frozen=True, slots=True)
class ValueModels:
    """Q models, either of which may be missing.

    Attributes:
        guide: chooses among candidates; it values what was tried, too, without a `verifier`.
        verifier: values what was tried, after its observation.
    """

    guide: Scorer | None
    verifier: Scorer | None = None

    @property
    def observes(self) -> bool:
        """True if what was tried is valued after its observation."""
        valuing = self.verifier or self.guide
        return valuing is not None and valuing.reads_observation

    @property
    def scorer(self) -> Scorer | None:
        """One scorer that gives each request to the Q model that reads it."""
        if self.guide is None or self.verifier is None:
            return self.guide or self.verifier
        return _RoutedScorer(self.guide, self.verifier)

    def require_fit(self, methods: Collection[str]) -> None:
        """Refuse a Q model whose values a method cannot use."""
        compared = sorted(COMPARING.intersection(methods))
        ranks = self.guide is not None and self.guide.ranks
        if compared and ranks and (self.verifier is None or "adaptive" in compared):
            raise ConfigError(
                f"qnet is a judge that ranks the candidates of one step, but {compared[0]} "
                "compares Q of different steps; use a judge with mode = 'score', or leave it out"
            )
        guided = sorted(GUIDED.intersection(methods))
        if guided and self.guide is not None and self.guide.reads_observation:
            raise ConfigError(
                f"qnet reads after the observation, but {guided[0]} chooses before it; name it as "
                "verifier, and a Q model that reads at the action as qnet"
            )
        if self.verifier is not None and not self.verifier.reads_observation:
            raise ConfigError(
                "verifier reads Q at the action; name it as qnet and leave verifier empty, or "
                "train one with read_at = 'observation'"
            )
        if self.verifier is not None and VALUING.isdisjoint(methods):
            raise ConfigError(
                f"no method uses the verifier; add {' or '.join(sorted(VALUING))} to methods"
            )


class _RoutedScorer(Scorer):
    """Requests with observations go to one scorer, the others to another."""

    reads_observation = True

    def __init__(self, guide: Scorer, verifier: Scorer) -> None:
        self.name = f"{guide.name}, {verifier.name}"
        self._guide = guide
        self._verifier = verifier

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate, in the requests' order."""
        answers = {
            observed: iter(scorer.score([r for r in requests if bool(r.observations) == observed]))
            for observed, scorer in ((False, self._guide), (True, self._verifier))
        }
        return [next(answers[bool(request.observations)]) for request in requests]
