"""A page that reaches this server by DNS rebinding is refused by the name that it came with."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from qguide.server.http.keys import create_key
from qguide.server.settings.settings import Settings
from tests.unit.server.conftest import FAKES, Serve

FOREIGN = ("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example")
OWN = ("localhost", "LOCALHOST:8000", "127.0.0.1:8000", "10.2.3.4", "[::1]:8000", "a.localhost")


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("path", ["/v1/models/drop", "/v1/act", "/healthz", "/playground"])
def test_a_foreign_host_is_refused(serve: Serve, host: str, path: str) -> None:
    client = serve(FAKES.model_copy(update={"admin": True}))
    response = client.post(path, headers={"Host": host}, json={"q_model": "other@0"})
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "untrusted_host"
    assert "QGUIDE_TRUSTED_HOSTS" in response.json()["error"]["message"]
    assert response.headers["x-request-id"] == response.json()["error"]["request_id"]


@pytest.mark.parametrize("host", OWN)
def test_the_servers_own_names_are_served(client: TestClient, host: str) -> None:
    assert client.get("/healthz", headers={"Host": host}).status_code == 200


def test_a_second_host_is_refused(client: TestClient) -> None:
    hosts = [("Host", "localhost"), ("Host", "evil.example")]
    assert client.get("/healthz", headers=hosts).status_code == 403


@pytest.mark.parametrize("trusted", [("qguide.example",), ("*",)])
def test_more_hosts_can_be_trusted(serve: Serve, trusted: tuple[str, ...]) -> None:
    client = serve(FAKES.model_copy(update={"trusted_hosts": trusted}))
    served = client.get("/healthz", headers={"Host": "QGuide.example:443"})
    assert served.status_code == 200
    other = client.get("/healthz", headers={"Host": "evil.example"})
    assert other.status_code == (200 if trusted == ("*",) else 403)


def test_a_key_is_proof_enough_unless_hosts_are_named(serve: Serve, tmp_path: Path) -> None:
    keys_file = tmp_path / "keys.json"
    headers = {"X-API-Key": create_key(keys_file, "ada"), "Host": "anything.example"}
    keyed = FAKES.model_copy(update={"keys_file": keys_file})
    assert serve(keyed).get("/v1/models", headers=headers).status_code == 200
    named = keyed.model_copy(update={"trusted_hosts": ("qguide.example",)})
    assert serve(named).get("/v1/models", headers=headers).status_code == 403


@pytest.mark.parametrize("host", ["https://qguide.example", "qguide.example:8000", "a/b", ""])
def test_what_is_no_hosts_name_is_refused_at_the_start(host: str) -> None:
    with pytest.raises(ValidationError, match=rf"trusted_hosts\.0\n.*'{host}'"):
        Settings(trusted_hosts=(host,))
