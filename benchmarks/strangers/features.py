"""The learner of QGuide that needs no network, as the harness takes one."""

from collections.abc import Sequence

from qguide.qnet.features.hashing import Hasher
from qguide.qnet.models.feature_q import FeatureScorer
from qguide.training.data.trajectories import Trajectory
from qguide.training.learning.advantage import Options
from qguide.training.learning.episodes import episode_of
from qguide.training.learning.learner import Learned, learn
from qguide.training.licence.verdict import licence_of


class LicensedScorer(FeatureScorer):
    """The scorer with the temperature of its posterior, its licence and the evidence for it."""

    def __init__(self, learned: Learned) -> None:
        super().__init__("features", learned.model)
        self.learned = learned
        self.tau = learned.weights.tau
        self.greedy_weight = learned.weights.greedy
        self.licence = licence_of(learned.evidence, learned.credit)


class Features:
    """See `benchmarks.strangers.protocol.Learner`."""

    name = "features"
    options = Options()

    def fit(self, rows: Sequence[Trajectory]) -> LicensedScorer:
        """Learn Q from recorded episodes, by the options of `qguide learn`."""
        return LicensedScorer(learn([episode_of(row) for row in rows], self.options, Hasher(b"strangers")))
