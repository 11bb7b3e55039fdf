"""The environment of the vLLM child process."""

import pytest

from qguide.server.upstreams.managed_process import child_environment


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "LC_ALL",
        "LD_PRELOAD",
        "CUDA_VISIBLE_DEVICES",
        "NCCL_SOCKET_IFNAME",
        "HF_HOME",
        "HF_HUB_OFFLINE",
        "VLLM_CPU_KVCACHE_SPACE",
        "TORCHDYNAMO_DISABLE",
        "TOKENIZERS_PARALLELISM",
    ],
)
def test_what_a_model_server_reads_is_handed_on(name: str) -> None:
    assert child_environment({name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    "name",
    [
        "QGUIDE_UPSTREAMS",
        "QGUIDE_REDIS_URL",
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "DATABASE_URL",
        "HTTPS_PROXY",
        "HF_TOKEN",
        "HUGGINGFACE_HUB_TOKEN",
        "VLLM_API_KEY",
    ],
)
def test_secrets_are_handed_on_only_by_name(name: str) -> None:
    environment = {name: "secret", "HOME": "/root"}
    assert child_environment(environment) == {"HOME": "/root"}
    assert child_environment(environment, [name]) == environment


def test_a_named_variable_that_is_not_set_is_left_out() -> None:
    assert child_environment({"HOME": "/root"}, ["HF_TOKEN"]) == {"HOME": "/root"}
