"""Models by their hub name: the commit is pinned, nothing that can run is downloaded."""

import json
from pathlib import Path
from typing import Any

import pytest

from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.hub import hub_name, model_folder, short_name
from qguide.qnet.models.manifest import MANIFEST
from tests.support.loopback_hub import LoopbackHub, run_with_hub, running_hub
from tests.support.tiny_models import save_policy, save_qnet

PROGRAM = """
import json, sys
from pathlib import Path
from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.checkpoint import load_policy, load_q_model
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.models.checkpoint import save_checkpoint
from qguide.qnet.models.hub import hub_name, model_folder
from qguide.qnet.models.qnet import QNet

found = {}
for name in sys.argv[2:]:
    try:
        load = load_q_model if "qnet" in name else load_policy
        loaded = load(Path(name))
    except CheckpointError as error:
        found[name] = {"refused": str(error)}
    else:
        folder = model_folder(name)
        files = sorted(file.name for file in folder.iterdir())
        found[name] = {"served": loaded.name, "pinned": hub_name(folder), "files": files}
        if name.endswith("policy"):
            save_checkpoint(
                Path(sys.argv[1]),
                model=QNet.from_trunk(Path(name), head_width=16),
                tokenizer=loaded.renderer.tokenizer,
                manifest=Manifest(
                    kind="qnet", name="t", read_at="last_token", trunk=hub_name(folder)
                ),
            )
print(json.dumps(found))
"""


def run_with(hub: LoopbackHub, home: Path, *names: str, offline: bool = False) -> dict[str, Any]:
    """Outcome by name in a program for which the hub is on loopback: its address is read once."""
    output = run_with_hub(hub, home, PROGRAM, str(home / "trained"), *names, offline=offline)
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


@pytest.mark.server
def test_models_are_downloaded_by_name_and_pinned_to_a_commit(tmp_path: Path) -> None:
    policy = save_policy(tmp_path / "policy")
    (policy / "modeling_tiny.py").write_text("raise SystemExit('remote code ran')\n")
    (policy / "pytorch_model.bin").write_bytes(b"a pickle")
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text("{}")
    (pickled / "pytorch_model.bin").write_bytes(b"a pickle")
    with running_hub() as hub:
        commit = hub.publish("tiny/policy", policy)
        other = hub.publish("tiny/policy", save_policy(tmp_path / "v2", seed=1), revision="v2")
        scored = hub.publish("tiny/qnet", save_qnet(tmp_path / "qnet", policy))
        hub.publish("tiny/pickled", pickled)
        names = ("tiny/policy", "tiny/policy@v2", f"tiny/qnet@{scored}")
        found = run_with(hub, tmp_path / "home", *names, "tiny/pickled", "tiny/nothing")
        asked = len(hub.served)
        offline = run_with(hub, tmp_path / "home", names[0], "tiny/unseen", offline=True)
        assert len(hub.served) == asked

    main = found["tiny/policy"]
    assert main["served"] == "tiny/policy"
    assert main["pinned"] == f"tiny/policy@{commit}"
    assert "model.safetensors" in main["files"]
    assert not {"pytorch_model.bin", "modeling_tiny.py"} & {*main["files"], *hub.served}
    assert found["tiny/policy@v2"]["pinned"] == f"tiny/policy@{other}"
    qnet = found[f"tiny/qnet@{scored}"]
    assert (qnet["served"], qnet["pinned"]) == ("tiny-q", f"tiny/qnet@{scored}")
    assert "has no safetensors at tiny/pickled@" in found["tiny/pickled"]["refused"]
    assert "is no folder here, and the hub does not give it" in found["tiny/nothing"]["refused"]

    assert offline["tiny/policy"] == main
    assert "HF_HUB_OFFLINE is not set" in offline["tiny/unseen"]["refused"]

    manifest = json.loads((tmp_path / "home/trained" / MANIFEST).read_text())
    assert manifest["trunk"] == f"tiny/policy@{commit}"


def test_a_folder_is_taken_before_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs" / "policy").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert model_folder("runs/policy") == Path("runs/policy")
    assert hub_name(Path("runs/policy")) == ""
    assert short_name(Path("runs/policy")) == "policy"


def test_the_model_in_a_run_folder_is_named(tmp_path: Path) -> None:
    for name in ("checkpoint", "policy"):
        (tmp_path / "run" / name).mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"run/checkpoint or .*run/policy"):
        model_folder(tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").touch()
    assert model_folder(tmp_path / "run") == tmp_path / "run"


@pytest.mark.parametrize("name", ["/nowhere/policy", "./runs/policy", "a/b/c", "policy"])
def test_a_path_is_no_hub_name(name: str) -> None:
    assert model_folder(name) == Path(name)


def test_a_name_that_neither_disk_nor_hub_knows_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"nobody/nothing@v1 .*\(LocalEntryNotFoundError:"):
        model_folder("nobody/nothing@v1")
