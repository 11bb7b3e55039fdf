"""Environment of the vLLM child process: variables a model server needs, without our secrets.

This server's environment holds API keys, the Redis password and whatever else the operator or the
cluster put there. vLLM runs third-party code, with `--trust-remote-code` even that of a model.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

_NAMES: Final = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LANGUAGE", "TERM"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("CC", "CXX", "CPATH", "LIBRARY_PATH", "MAX_JOBS"),  # kernels are compiled at run time
        *("NO_COLOR", "TOKENIZERS_PARALLELISM", "MALLOC_ARENA_MAX"),
    )
)
_PREFIXES: Final = (
    *("LC_", "LD_", "PYTHON"),
    *("CUDA_", "NVIDIA_", "NCCL_", "CUBLAS_", "CUDNN_", "NVTE_", "FLASHINFER_"),
    *("HIP_", "HSA_", "ROCR_", "ROCM_", "AMD_", "MIOPEN_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "GLOO_", "UCX_"),
    *("VLLM_", "TORCH", "PYTORCH_", "TRITON_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_"),
)
_SECRET: Final = re.compile(r"(^|_)(TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL|AUTH)S?(_|$)", re.I)


def child_environment(environment: Mapping[str, str], named: Sequence[str] = ()) -> dict[str, str]:
    """The variables to pass on.

    Args:
        named: names that the operator allows in addition, even if they look like secrets.
    """
    return {name: value for name, value in environment.items() if name in named or _is_plain(name)}


def _is_plain(name: str) -> bool:
    if name in _NAMES:
        return True
    return name.startswith(_PREFIXES) and not _SECRET.search(name)
