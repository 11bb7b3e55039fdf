"""The learner of QGuide that needs no network, as the harness takes one."""

from collections.abc import Sequence

from qnet.features.hashing import Hasher
from qnet.scoring.feature_q import FeatureScorer
from training.data.records import TrajectoryRow
from training.learning.advantage import Options
from training.learning.episodes import episodes_of
from training.learning.learner import learn


class Features:
    """See `benchmarks.strangers.protocol.Learner`."""

    name = "features"

    def fit(self, rows: Sequence[TrajectoryRow]) -> FeatureScorer:
        """Learn Q from recorded episodes, by the options of `qguide learn`."""
        return FeatureScorer(self.name, learn(episodes_of(rows), Options(), Hasher(b"strangers")))
