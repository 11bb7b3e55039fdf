"""Devices of models in this process, checked before they are loaded."""

import pytest
import torch

from qguide.qnet.errors import ConfigError
from qguide.server.q_models.build import build_models
from qguide.server.q_models.local_models import check_device
from qguide.server.settings.settings import EMBEDDED, SCRIPTED, Settings

built = torch.backends.cuda.is_built()


@pytest.mark.skipif(built, reason="this torch has CUDA")
@pytest.mark.parametrize(("policy", "q_model"), [(EMBEDDED, SCRIPTED), (SCRIPTED, EMBEDDED)])
def test_cuda_without_a_build_for_it_names_the_setting_and_the_remedy(policy: str, q_model: str) -> None:
    settings = Settings(policy=policy, q_models={"one": q_model}, device="cuda")
    with pytest.raises(ConfigError, match=r"QGUIDE_DEVICE .*'cuda', .* torch \S+ .* QGUIDE_DEVICE=cpu"):
        build_models(settings)


async def test_models_that_run_elsewhere_need_no_device() -> None:
    settings = Settings(policy=SCRIPTED, q_models={"one": SCRIPTED}, device="cuda:99")
    models = build_models(settings)
    await models.close()
    assert models.policy.name == SCRIPTED


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"QGUIDE_DEVICE .*'gpu', .* cpu, .*cuda:1$"):
        check_device("gpu")


@pytest.mark.parametrize(("found", "device"), [(0, "cuda"), (1, "cuda:1")])
def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, found: int, device: str) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    with pytest.raises(ConfigError, match=f"QGUIDE_DEVICE .*'{device}', .* {found} CUDA .*QGUIDE_DEVICE=cpu"):
        check_device(device)
