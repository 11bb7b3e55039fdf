"""Learning of keys and of groups of keys, over HTTP: apart, together, and seen by whom it may be."""

import json
from pathlib import Path
from random import Random

from qguide.server.http.keys import create_key
from qguide.server.learning.service import LEARNING
from qguide.server.settings.settings import Settings
from tests.unit.server.conftest import Serve
from tests.unit.server.learning.scripted_agent import bearer, play, state, wait_for_fit


def test_keys_learn_apart(serve: Serve, settings: Settings, tmp_path: Path) -> None:
    keys = {name: create_key(tmp_path / "keys.json", name) for name in ("ada", "bob")}
    root = create_key(tmp_path / "keys.json", "root", admin=True)
    client = serve(settings.model_copy(update={"keys_file": tmp_path / "keys.json", "learn_every": 20}))
    chance = Random(2)
    for number in range(10):
        play(client, number, chance, keys["ada"])
        play(client, number, chance, keys["bob"])
    assert state(client, keys["ada"])["episodes"] == 10
    assert state(client, keys["bob"])["fit"] is None

    for number in range(10, 20):
        play(client, number, chance, keys["ada"])
    assert wait_for_fit(client, key=keys["ada"])["fit"]["episodes"] == 20
    assert state(client, keys["bob"])["fit"] is None
    manifest = tmp_path / LEARNING / "ada" / "versions" / "1" / "manifest.json"
    assert json.loads(manifest.read_text())["metrics"]["episodes"] == 20

    headers = bearer(keys["bob"])
    assert client.get("/v1/learning?group=ada", headers=headers).status_code == 403
    order = {"order": "forbid", "group": "ada"}
    assert client.post("/v1/learning", json=order, headers=headers).status_code == 403
    assert state(client, root, group="ada")["episodes"] == 20
    assert client.get("/v1/learning/curve?group=ada", headers=headers).status_code == 403
    assert client.get("/v1/learning/groups", headers=headers).status_code == 403
    curve = client.get("/v1/learning/curve?group=ada", headers=bearer(root)).json()
    assert sum(point["episodes"] for point in curve["unguided"]) == 20
    groups = client.get("/v1/learning/groups", headers=bearer(root)).json()["groups"]
    assert {one["group"]: one["episodes"] for one in groups} == {"ada": 20, "bob": 10}

    pages = {name: client.get("/metrics", headers=bearer(key)).text for name, key in keys.items()}
    for named in ('group="ada"', 'q_model="learned@1'):
        assert (named in pages["ada"], named in pages["bob"]) == (True, False)


def test_keys_of_a_group_learn_together(serve: Serve, settings: Settings, tmp_path: Path) -> None:
    keys = [create_key(tmp_path / "keys.json", name) for name in ("ada", "bob")]
    shared = {"ada": "shop", "bob": "shop"}
    more = {"keys_file": tmp_path / "keys.json", "learn_groups": shared}
    client = serve(settings.model_copy(update=more))
    for number, key in enumerate(keys):
        play(client, number, Random(3), key)
    assert [state(client, key)["group"] for key in keys] == ["+shop", "+shop"]
    assert state(client, keys[0])["episodes"] == 2


def test_a_key_stands_for_its_group_and_an_unknown_name_is_refused(
    serve: Serve, settings: Settings, tmp_path: Path
) -> None:
    keys = {name: create_key(tmp_path / "keys.json", name) for name in ("ada", "bob")}
    root = create_key(tmp_path / "keys.json", "root", admin=True)
    more = {"keys_file": tmp_path / "keys.json", "learn_groups": {"ada": "shop"}}
    client = serve(settings.model_copy(update=more))
    play(client, 0, Random(3), keys["ada"])

    assert state(client, root, group="ada")["group"] == "+shop"
    assert state(client, keys["ada"], group="ada")["episodes"] == 1
    forbid = {"order": "forbid", "group": "ada"}
    client.post("/v1/learning", json=forbid, headers=bearer(root)).raise_for_status()
    assert state(client, keys["ada"])["mode"] == "forbidden"

    assert state(client, root, group="bob")["episodes"] == 0  # it may begin to learn
    for query in ("adda", "%2Bshops", "_"):
        refused = client.get(f"/v1/learning?group={query}", headers=bearer(root))
        assert refused.status_code == 400
        assert "no group and no key is named" in refused.json()["error"]["message"]
    typing_error = forbid | {"group": "adda"}
    answer = client.post("/v1/learning", json=typing_error, headers=bearer(root))
    assert answer.status_code == 400
    assert {folder.name for folder in (tmp_path / LEARNING).iterdir()} == {"+shop", "bob"}


def test_groups_that_another_replica_has_begun_are_listed(serve: Serve, settings: Settings, tmp_path: Path) -> None:
    key = create_key(tmp_path / "keys.json", "ada")
    root = create_key(tmp_path / "keys.json", "root", admin=True)
    keyed = settings.model_copy(update={"keys_file": tmp_path / "keys.json"})
    client, other = serve(keyed), serve(keyed)
    play(client, 0, Random(3), key)
    listed = other.get("/v1/learning/groups", headers=bearer(root)).json()["groups"]
    assert {one["group"]: one["episodes"] for one in listed} == {"ada": 1}
