"""The contestants that run in processes of their own, by name."""

from contextlib import AbstractContextManager

from qnet.bench.contestants import ManySessions
from qnet.bench.names import Remote
from qnet.bench.served import served_by_qguide, served_by_vllm
from qnet.bench.vllm_peer import vllm_engine
from qnet.bench.workplace import BLOCK, Workplace


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
