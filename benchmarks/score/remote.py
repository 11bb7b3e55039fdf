"""Baselines that run in separate processes, by name."""

from contextlib import AbstractContextManager

from benchmarks.measurement.names import Remote
from benchmarks.score.baselines import ManySessions
from benchmarks.score.exported_model import BLOCK, ExportedModel
from benchmarks.score.http_baselines import served_by_qguide, served_by_vllm
from benchmarks.score.vllm_peer import vllm_engine


def open_remote(name: Remote, exported: ExportedModel) -> AbstractContextManager[ManySessions]:
    """Run a baseline's process during the block; it is ready when the block begins.

    Raises:
        ConfigError: on entering the block, if the process does not start.
    """
    match name:
        case "vllm":
            return vllm_engine(exported, block_size=None)
        case "vllm-block32":
            return vllm_engine(exported, block_size=BLOCK)
        case "http":
            return served_by_qguide(exported)
        case "vllm-http":
            return served_by_vllm(exported)
