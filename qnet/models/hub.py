"""Models by their name on the Hugging Face hub: `Qwen/Qwen3-0.6B`, or with `@REVISION`.

A name may stand wherever a folder may. What is downloaded are safetensors, configuration and the
tokenizer, nothing that can run; with `HF_HUB_OFFLINE=1` only what was downloaded before is found.
`HF_ENDPOINT`, `HF_HOME` and `HF_TOKEN` are the hub library's own.
"""

import re
from pathlib import Path
from typing import Final

from qguide.qnet.errors import CheckpointError

_NAME: Final = re.compile(r"(?P<model>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>[\w][\w./-]*))?")
_FILES: Final = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
"""Files of a model; weights in other formats than safetensors can hold programs."""
_SNAPSHOTS: Final = "snapshots"
_CACHED: Final = "models--"
_IN_RUN_FOLDERS: Final = ("checkpoint", "policy")


def is_hub_name(model: str) -> bool:
    """True for text that can be a model's name on the hub."""
    return _NAME.fullmatch(model) is not None


def model_folder(model: str | Path) -> Path:
    """The folder of a model: the one that is named, or the hub's snapshot of that name; else a `CheckpointError`."""
    folder = Path(model)
    name = _NAME.fullmatch(str(model))
    if folder.exists() or name is None:
        refuse_run_folder(folder)
        return folder
    # With a local folder that was misspelled the hub is asked too, and says that it has none.
    from huggingface_hub import snapshot_download

    try:
        found = Path(
            snapshot_download(name["model"], revision=name["revision"], allow_patterns=_FILES, etag_timeout=30)
        )
    except Exception as error:  # the hub's, the network's and the disk's
        raise CheckpointError(
            f"{model} is no folder here, and the hub does not give it "
            f"({type(error).__name__}: {error}); check the name, or download it where the hub can "
            "be reached and HF_HUB_OFFLINE is not set"
        ) from error
    if not any(found.glob("*.safetensors")):
        raise CheckpointError(
            f"{model} has no safetensors at {hub_name(found)}; name a revision that has them, or "
            "convert it: other weights can hold programs and are not loaded"
        )
    return found


def refuse_run_folder(folder: Path) -> None:
    """Refuse a job's run folder, and name the models in it."""
    inside = [folder / name for name in _IN_RUN_FOLDERS if (folder / name).is_dir()]
    if inside and not any(folder.glob("*.safetensors")):
        raise CheckpointError(
            f"{folder} is a job's run folder and no model; name the model in it, {' or '.join(map(str, inside))}"
        )


def hub_name(folder: Path) -> str:
    """A snapshot's name with its commit, `Qwen/Qwen3-0.6B@COMMIT`; empty for other folders."""
    if folder.parent.name != _SNAPSHOTS or not folder.parents[1].name.startswith(_CACHED):
        return ""
    model = folder.parents[1].name.removeprefix(_CACHED).replace("--", "/", 1)
    return f"{model}@{folder.name}"


def short_name(folder: Path) -> str:
    """The name that a model is served under where no manifest gives one."""
    return hub_name(folder).partition("@")[0] or folder.name
