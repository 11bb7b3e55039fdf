"""Nobody learns from a cache what the holder of another key has asked."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.device.local_policy import LocalPolicy
from qguide.qnet.models.remote_trunk import load_remote_trunk
from qguide.qnet.models.trunk_export import export_trunk
from qguide.qnet.scoring.value_head import SharedPrefixScorer
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.http.keys import create_key
from qguide.server.q_models.registry import Models
from qguide.server.settings.remote_models import Upstream, VllmTrunk
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.support.scripted_vllm import scripted_vllm
from tests.support.tiny_models import CONTEXT, policy_model, q_model, save_policy, save_qnet
from tests.unit.server.conftest import FAKES, Serve, models_of

TEXT = "go to desk take mug from shelf open Action : you see " * 3
MESSAGES = [{"role": "user", "content": TEXT}]
SCORE = {"messages": MESSAGES, "candidates": ["go to desk", "take mug"]}
ACT = {"messages": MESSAGES, "num_candidates": 3, "max_tokens": 4, "temperature": 1.0}


class Keys:
    """A keys file, and requests with its keys."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "keys.json"
        self._headers: dict[str, dict[str, str]] = {}

    def create(self, name: str, **more: Any) -> None:
        """Another key of the file."""
        key = create_key(self.file, name, **more)
        self._headers[name] = {"Authorization": f"Bearer {key}"}

    def ask(self, client: TestClient, name: str, path: str, body: dict[str, Any]) -> Any:
        """The answer to one of the keys."""
        answer = client.post(path, json=body, headers=self._headers[name])
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    keys = Keys(tmp_path)
    keys.create("ada")
    keys.create("bob")
    return keys


def tiny_models(_: Settings) -> Models:
    """A real policy and a real scorer on one device thread."""
    thread = DeviceThread()
    return models_of(LocalPolicy(policy_model(), thread=thread), SharedPrefixScorer(q_model()), thread)


def test_a_key_finds_no_prefix_that_another_key_has_scored(serve: Serve, keys: Keys) -> None:
    client = serve(FAKES.model_copy(update={"keys_file": keys.file}), tiny_models)
    cached = [
        keys.ask(client, name, "/v1/score", SCORE)["usage"]["cached_tokens"] for name in ("ada", "ada", "bob", "bob")
    ]
    assert cached[0] == cached[2] == 0
    assert cached[1] == cached[3] > 0


def test_keys_of_a_named_group_share_what_is_cached(serve: Serve, keys: Keys) -> None:
    keys.create("carl", cache_group="team")
    keys.create("dora", cache_group="team")
    client = serve(FAKES.model_copy(update={"keys_file": keys.file}), tiny_models)
    cached = [keys.ask(client, name, "/v1/score", SCORE)["usage"]["cached_tokens"] for name in ("ada", "carl", "dora")]
    assert cached[:2] == [0, 0]
    assert cached[2] > 0


def test_a_key_that_is_named_like_a_group_is_not_of_it(serve: Serve, keys: Keys) -> None:
    keys.create("carl", cache_group="ada")
    client = serve(FAKES.model_copy(update={"keys_file": keys.file}), tiny_models)
    cached = [keys.ask(client, name, "/v1/score", SCORE)["usage"]["cached_tokens"] for name in ("ada", "carl")]
    assert cached == [0, 0]


def test_without_keys_everybody_shares_what_is_cached(tiny_client: TestClient) -> None:
    usages = [tiny_client.post("/v1/score", json=SCORE).json()["usage"] for _ in range(2)]
    assert usages[0]["cached_tokens"] == 0 < usages[1]["cached_tokens"]


def test_a_score_that_another_key_asked_for_is_computed_again(serve: Serve, keys: Keys) -> None:
    settings = Settings(policy=SCRIPTED, q_models={"q": "embedded"}, keys_file=keys.file, score_cache_ttl_s=60)
    client = serve(settings)
    computed = [
        keys.ask(client, name, "/v1/score", SCORE)["usage"]["scored_tokens"] for name in ("ada", "ada", "bob", "bob")
    ]
    assert computed[0] == computed[2] > 0
    assert computed[1] == computed[3] == 0


def test_a_task_that_another_key_had_paraphrased_is_paraphrased_again(serve: Serve, keys: Keys) -> None:
    client = serve(FAKES.model_copy(update={"keys_file": keys.file, "paraphraser": SCRIPTED}))
    body = ACT | {"perturb": True}
    tokens = [
        keys.ask(client, name, "/v1/act", body)["usage"]["paraphrase_tokens"] for name in ("ada", "ada", "bob", "bob")
    ]
    assert tokens[0] == tokens[2] > 0
    assert tokens[1] == tokens[3] == 0


def test_a_vllm_trunk_is_told_the_salt_and_finds_no_other_keys_prefix(serve: Serve, keys: Keys, tmp_path: Path) -> None:
    checkpoint = save_qnet(tmp_path / "qnet", save_policy(tmp_path / "policy"))
    export_trunk(checkpoint, tmp_path / "trunk")
    name = load_remote_trunk(checkpoint).trunk_name
    with scripted_vllm(tmp_path / "trunk", model=name, context=CONTEXT) as vllm:
        settings = Settings(
            policy=SCRIPTED,
            q_models={"big": str(checkpoint)},
            vllm_trunks={"big": VllmTrunk.model_validate({"url": vllm.url})},
            keys_file=keys.file,
        )
        client = serve(settings)
        cached = [
            keys.ask(client, who, "/v1/score", SCORE)["usage"]["cached_tokens"] for who in ("ada", "ada", "bob", "bob")
        ]
        salts = [asked.get("cache_salt") for asked in vllm.asked[-4:]]
    # The second candidate finds the history that the first one has just left there.
    assert cached[0] == cached[2] < cached[1] == cached[3]
    assert salts[0] == salts[1] != salts[2] == salts[3]
    assert None not in salts


def test_an_upstream_that_takes_it_is_told_the_salt(
    serve: Serve, keys: Keys, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    served = Upstream.model_validate({"url": address[1], "model": "fake-1", "cache_salt": True})
    update = {"upstreams": {"demo": served}, "policy": "demo", "keys_file": keys.file}
    client = serve(FAKES.model_copy(update=update))
    completion = {"model": "demo", "messages": MESSAGES, "qguide": {"num_candidates": 2}}
    for who, given in (("ada", {}), ("ada", {}), ("bob", {}), ("bob", {"cache_salt": "of ada"})):
        keys.ask(client, who, "/v1/chat/completions", completion | given)
    ada, again, bob, other = [asked["cache_salt"] for asked in upstream.asked]
    assert ada == again
    assert len({ada, bob, other, "of ada"}) == 4
    for who, given in (("ada", {}), ("bob", {}), ("bob", {"cache_salt": "of ada"})):
        keys.ask(client, who, "/v1/completions", {"prompt": "x", "echo": True} | given)
    texts = [asked["cache_salt"] for asked in upstream.asked[4:]]
    assert len({*texts, "of ada"}) == 4


def test_an_upstream_that_may_refuse_a_salt_is_told_none(
    serve: Serve, keys: Keys, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    served = Upstream.model_validate({"url": address[1], "model": "fake-1"})
    update = {"upstreams": {"demo": served}, "policy": "demo", "keys_file": keys.file}
    client = serve(FAKES.model_copy(update=update))
    keys.ask(client, "ada", "/v1/act", ACT)
    assert upstream.asked
    assert not any("cache_salt" in asked for asked in upstream.asked)
