"""Learns a Q model without a network from recorded episodes."""

from collections.abc import Sequence

from qnet.features.hashing import Hasher
from qnet.models.feature_q import FeatureQ, feature_q_of
from training.learning.advantage import Options, fit, steps_of
from training.learning.episodes import Episode


def learn(episodes: Sequence[Episode], options: Options, hasher: Hasher) -> FeatureQ:
    """The Q model of these episodes."""
    found = fit(steps_of(episodes, hasher), options)
    return feature_q_of(found.values, found.advantages, mean=found.mean, hasher=hasher)
