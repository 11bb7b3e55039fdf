"""The contestants that run in processes of their own, by name."""

from contextlib import AbstractContextManager

from qguide.bench.measurement.names import Remote
from qguide.bench.score.baselines import ManySessions
from qguide.bench.score.exported_model import BLOCK, Workplace
from qguide.bench.score.http_scorer import served_by_qguide, served_by_vllm
from qguide.bench.score.vllm_peer import vllm_engine


def open_remote(name: Remote, workplace: Workplace) -> AbstractContextManager[ManySessions]:
    """The contestant, as long as the block; its process is ready when the block begins.

    Raises:
        ConfigError: the process does not start, on entering.
    """
    match name:
        case "vllm":
            return vllm_engine(workplace, block_size=None)
        case "vllm-block32":
            return vllm_engine(workplace, block_size=BLOCK)
        case "http":
            return served_by_qguide(workplace)
        case "vllm-http":
            return served_by_vllm(workplace)
