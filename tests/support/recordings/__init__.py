"""Small recordings of one episode in the formats of others, faithful to their files."""

from typing import Final

from tests.support.recordings import agents, runs, traces

SAMPLES: Final = (*agents.SAMPLES, *traces.SAMPLES, *runs.SAMPLES)
