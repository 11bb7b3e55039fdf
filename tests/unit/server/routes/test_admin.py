"""POST /v1/models/…: the operator's routes, and what they refuse."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from qguide.qnet.models.manifest import MANIFEST, sha256_of
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.support.tiny_models import save_policy, save_qnet
from tests.unit.server.conftest import FAKES, Serve

SCORE = {"messages": [{"role": "user", "content": "go to desk"}], "candidates": ["go", "open"]}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `good` and its trunk, made once."""
    folder = tmp_path_factory.mktemp("saved")
    save_qnet(folder / "good", save_policy(folder / "trunk"))
    return folder


@pytest.fixture
def models_dir(tmp_path: Path, saved: Path) -> Path:
    """The folder `good`, its trunk beside the models folder, and a secret one there."""
    for name, place in (("good", "models/good"), ("good", "secret"), ("trunk", "trunk")):
        copytree(saved / name, tmp_path / place)
    return tmp_path / "models"


@pytest.fixture
def admin(serve: Serve, models_dir: Path) -> TestClient:
    """A server of fakes with the operator's routes."""
    return serve(FAKES.model_copy(update={"admin": True, "models_dir": models_dir}))


def post(client: TestClient, path: str, **body: Any) -> Any:
    return client.post(f"/v1/models/{path}", json=body)


def served(client: TestClient) -> list[str]:
    return [card["id"] for card in client.get("/v1/models").json()["q_models"]]


def test_a_folder_is_served_under_the_hash_of_its_manifest(admin: TestClient, models_dir: Path) -> None:
    answer = post(admin, "load", folder="good", name="shop")
    version = sha256_of(models_dir / "good" / MANIFEST)[:12]
    assert answer.status_code == 200, answer.text
    card = answer.json()["q_models"][-1]
    assert (card["id"], card["version"], card["context"]) == (f"shop@{version}", version, 256)
    assert (card["checkpoint"], card["default"]) == ("tiny-q", False)
    assert answer.json()["aliases"]["shop"] == f"shop@{version}"
    for name in ("shop", f"shop@{version}"):
        scored = admin.post("/v1/score", json=SCORE | {"q_model": name}).json()
        assert (scored["q_model"], scored["q_model_version"]) == ("shop", version)
        assert scored["usage"]["scored_tokens"] + scored["usage"]["cached_tokens"] > 0


def test_the_default_moves_and_the_old_version_can_then_be_dropped(admin: TestClient) -> None:
    refused = post(admin, "drop", q_model="demo@0")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "routing_refused")
    assert "'default' would point to 'demo'" in refused.json()["error"]["message"]
    moved = post(admin, "alias", alias="default", to="other@0").json()
    assert [card["id"] for card in moved["q_models"] if card["default"]] == ["other@0"]
    assert admin.post("/v1/score", json=SCORE).json()["q_model"] == "other"
    assert post(admin, "drop", q_model="demo@0").status_code == 200
    assert served(admin) == ["other@0"]
    assert admin.post("/v1/score", json=SCORE | {"q_model": "demo"}).status_code == 404


def test_a_split_is_listed_and_keeps_an_episode_with_its_arm(admin: TestClient) -> None:
    shares = {"demo@0": 1.0, "other@0": 1.0}
    listed = post(admin, "alias", alias="default", to=shares).json()
    assert listed["splits"] == {"default": shares}
    arms: dict[str, str] = {}
    for _ in range(2):
        for episode in map(str, range(8)):
            answer = admin.post(
                "/v1/act", json={"messages": SCORE["messages"], "episode_id": episode, "num_candidates": 2}
            ).json()
            assert arms.setdefault(episode, answer["q_model"]) == answer["q_model"]
    assert set(arms.values()) == {"demo", "other"}


def not_finite(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["head.out.bias"] = torch.tensor([float("inf")])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    reseal(folder)


def other_shape(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors") | {"head.out.bias": torch.ones(3)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    reseal(folder)


def other_renderer(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text()) | {"renderer_version": "0"}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def changed_byte(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))


def reseal(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"] = {name: sha256_of(folder / name) for name in manifest["files"]}
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / MANIFEST).unlink(), "has no manifest.json"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "is not a manifest"),
        (changed_byte, "model.safetensors differs from its sha256"),
        (other_shape, "mismatched"),
        (not_finite, "head.out.bias holds values that are not finite"),
        (other_renderer, "was trained with renderer 0"),
    ],
)
def test_a_bad_checkpoint_is_refused_with_its_reason(
    admin: TestClient, models_dir: Path, spoil: Callable[[Path], Any], said: str
) -> None:
    spoil(models_dir / "good")
    answer = post(admin, "load", folder="good", name="demo", version="1", replace=True)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "checkpoint_refused")
    assert said in answer.json()["error"]["message"]
    assert served(admin) == ["demo@0", "other@0"]
    assert admin.post("/v1/score", json=SCORE).json()["q_model"] == "demo"


@pytest.mark.parametrize("folder", ["../secret", "/etc", "..", ".", "", "good/../good", "good/", "a\\b", "~"])
def test_a_path_is_no_folders_name(admin: TestClient, folder: str) -> None:
    answer = post(admin, "load", folder=folder, name="shop")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert "is no folder in QGUIDE_MODELS_DIR; send a relative path" in answer.json()["error"]["message"]


def test_a_folder_may_lie_in_a_run(admin: TestClient, models_dir: Path) -> None:
    (models_dir / "qnet").mkdir()
    (models_dir / "good").rename(models_dir / "qnet" / "checkpoint")
    answer = post(admin, "load", folder="qnet/checkpoint", name="shop", version="v1")
    assert answer.status_code == 200, answer.text
    assert "shop@v1" in served(admin)


def test_a_link_on_the_way_leads_nowhere(admin: TestClient, models_dir: Path) -> None:
    (models_dir / "runs").symlink_to(models_dir.parent)
    answer = post(admin, "load", folder="runs/secret", name="shop")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_model")


def test_an_alias_is_removed_with_null(admin: TestClient) -> None:
    assert "trial" in post(admin, "alias", alias="trial", to="other@0").json()["aliases"]
    refused = post(admin, "drop", q_model="other@0")
    assert refused.status_code == 409
    assert "trial" not in post(admin, "alias", alias="trial", to=None).json()["aliases"]
    assert post(admin, "drop", q_model="other@0").status_code == 200
    again = post(admin, "alias", alias="trial", to=None)
    assert (again.status_code, again.json()["error"]["code"]) == (404, "unknown_model")


@pytest.mark.parametrize(
    ("alias", "said"),
    [
        ("default", "answers requests that name no Q model"),
        ("other", "is the name of a Q model; drop its versions instead"),
        ("trial", "'second' would point to 'trial'"),
    ],
)
def test_an_alias_that_is_needed_stays(admin: TestClient, alias: str, said: str) -> None:
    post(admin, "alias", alias="trial", to="other@0")
    post(admin, "alias", alias="second", to="trial")
    refused = post(admin, "alias", alias=alias, to=None)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "routing_refused")
    assert said in refused.json()["error"]["message"]


def test_a_link_leads_nowhere(admin: TestClient, models_dir: Path) -> None:
    (models_dir / "link").symlink_to(models_dir.parent / "secret")
    for folder in ("link", "missing"):
        answer = post(admin, "load", folder=folder, name="shop")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_model")
    assert served(admin) == ["demo@0", "other@0"]


def test_a_version_that_is_served_is_not_loaded_over(admin: TestClient) -> None:
    answer = post(admin, "load", folder="good", name="demo", version="0")
    assert answer.status_code == 409
    assert "demo@0 is already served; drop it first" in answer.json()["error"]["message"]


def test_a_refused_load_leaves_the_metrics_of_the_version_that_is_served(admin: TestClient) -> None:
    admin.post("/v1/score", json=SCORE)

    def series() -> set[str]:
        lines = admin.get("/metrics").text.splitlines()
        return {line.rpartition(" ")[0] for line in lines if 'q_model="demo@0"' in line}

    before = series()
    assert post(admin, "load", folder="good", name="demo", version="0").status_code == 409
    assert before
    assert before <= series()


@pytest.mark.parametrize("path", ["load", "drop", "alias", "shadow"])
def test_without_the_setting_there_are_no_such_routes(client: TestClient, path: str) -> None:
    assert post(client, path).status_code == 405  # a model may have that name, to be read


def test_without_a_models_folder_nothing_is_loaded(serve: Serve) -> None:
    client = serve(FAKES.model_copy(update={"admin": True}))
    answer = post(client, "load", folder="good", name="shop")
    assert answer.status_code == 400
    assert "set QGUIDE_MODELS_DIR" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("host", "ok"), [("0.0.0.0", False), ("::1", True), ("localhost", True)])
def test_admin_routes_without_keys_stay_on_this_machine(host: str, ok: bool) -> None:
    if ok:
        assert Settings(policy=SCRIPTED, admin=True, host=host).admin
        return
    with pytest.raises(ValidationError, match=r"admin .*'0\.0\.0\.0'; .*keys_file, .* 127\.0\.0\.1"):
        Settings(policy=SCRIPTED, admin=True, host=host)
