"""The page at /docs needs nothing but this server, and the document says how to send a key."""

import re
from pathlib import Path
from urllib.parse import urljoin

import pytest
from fastapi.testclient import TestClient

from qguide.server.http.keys import create_key
from tests.unit.server.conftest import FAKES, Serve

SCHEMES = ("bearer", "x-api-key", "x-goog-api-key", "api-key")


def assets_of(page: str) -> list[str]:
    return re.findall(r'(?:src|href)="([^"]+)"', page)


def test_all_that_the_page_loads_is_served_here(client: TestClient) -> None:
    page = client.get("/docs")
    names = assets_of(page.text)
    assert len(names) == 4
    for name in names:
        assert "//" not in name
        answer = client.get(urljoin("/docs", name))
        assert answer.status_code == 200, name
    assert "SwaggerUIBundle" in client.get("/docs/swagger-ui-bundle.js").text


def test_the_page_runs_no_script_but_its_own(client: TestClient) -> None:
    page = client.get("/docs")
    assert "script-src 'self';" in page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert not re.search(r"<script>|onload=", page.text)


def test_redoc_leads_to_the_page(client: TestClient) -> None:
    answer = client.get("/redoc", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "docs")


@pytest.mark.parametrize("public", [True, False])
def test_public_docs_need_no_key_and_others_do(serve: Serve, tmp_path: Path, public: bool) -> None:
    create_key(tmp_path / "keys.json", "me")
    keyed = {"keys_file": tmp_path / "keys.json", "public_docs": public}
    client = serve(FAKES.model_copy(update=keyed))
    paths = ["/docs", "/openapi.json", "/docs/start.js", "/docs/swagger-ui-bundle.js"]
    found = {client.get(path).status_code for path in [*paths, "/docs/swagger-ui.css"]}
    assert found == {200 if public else 401}


def test_a_server_without_keys_takes_requests_with_and_without(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert document["components"]["securitySchemes"].keys() == set(SCHEMES)
    assert document["security"] == [{}, *({name: []} for name in SCHEMES)]


def test_a_server_with_keys_says_which_endpoints_take_none(serve: Serve, tmp_path: Path) -> None:
    key = create_key(tmp_path / "keys.json", "me")
    client = serve(FAKES.model_copy(update={"keys_file": tmp_path / "keys.json"}))
    document = client.get("/openapi.json", headers={"X-API-Key": key}).json()
    assert document["security"] == [{name: []} for name in SCHEMES]
    assert "security" not in document["paths"]["/v1/act"]["post"]
    for path in ("/healthz", "/readyz", "/playground/abilities"):
        assert document["paths"][path]["get"]["security"] == []
        assert client.get(path).status_code == 200
