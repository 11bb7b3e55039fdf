"""Options of Q models that the papers set: of the value head, and of an implicit Q."""

from typing import Literal

HeadFeatures = Literal["none", "match-1"]
"""Features beside the hidden state for the value head; another definition, another number."""

HeadKind = Literal["mlp", "linear"]

PAPER_HEAD_WIDTH = 1024

DEFAULT_RANGE = (-0.1, 1.1)
"""Edges of the bins for labels in [0, 1]: with room, so that the mean can reach both ends."""

PAPER_BETA = 0.1
