"""SDKs in front of a server with an upstream of each dialect, and what tests ask by them."""

from typing import Any, Final, get_args

import anthropic
import openai

from qguide.qnet.policies.upstream_dialects import DialectName

DIALECTS: Final = get_args(DialectName)
ONE: Final = {"qguide": {"num_candidates": 1}}
THREE: Final = {"qguide": {"num_candidates": 3}}
ASKED: Final[Any] = [{"role": "user", "content": "find the mug"}]


def claude(url: str) -> anthropic.Anthropic:
    """Anthropic's SDK, which tries once."""
    return anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0)


def gpt(url: str) -> openai.OpenAI:
    """OpenAI's SDK, which tries once."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
