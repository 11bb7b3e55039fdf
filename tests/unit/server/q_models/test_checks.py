"""Names of policies are checked before anything is loaded."""

from pathlib import Path

import pytest

from qguide.qnet.errors import ConfigError
from qguide.server.q_models.build import check_policies
from qguide.server.settings.settings import Settings

GPT = {"gpt": {"url": "http://127.0.0.1:1/v1", "model": "gpt"}}


@pytest.mark.parametrize("named", ["embedded", "scripted", "gpt", "Qwen/Qwen3-0.6B@main"])
def test_a_name_that_can_be_served_passes(named: str) -> None:
    check_policies(Settings(policy=named, paraphraser=named, upstreams=GPT))


def test_a_folder_passes(tmp_path: Path) -> None:
    check_policies(Settings(policy=str(tmp_path)))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"policy": "gpt"}, "QGUIDE_POLICY .*'gpt', .*none; .* QGUIDE_UPSTREAMS"),
        ({"policy": "gtp", "upstreams": GPT}, r"QGUIDE_POLICY .*'gtp', .*\(gpt\),"),
        ({"paraphraser": "./nowhere"}, "QGUIDE_PARAPHRASER is './nowhere'"),
    ],
)
def test_a_name_of_nothing_is_refused_with_the_upstreams(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_policies(Settings.model_validate(settings))
