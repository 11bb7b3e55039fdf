"""Checks of the settings: names of policies, thresholds, and licences of Q models."""

from collections.abc import Iterable
from pathlib import Path

import structlog

from qguide.qnet.errors import CheckpointError, ConfigError
from qguide.qnet.models.hub import is_hub_name
from qguide.qnet.models.manifest import Manifest
from qguide.server.q_models.served import ServedQModel
from qguide.server.settings.settings import EMBEDDED, SCRIPTED, Settings


def check_policies(settings: Settings) -> None:
    """Check that `policy` and `paraphraser` name something, before anything is loaded."""
    for setting, named in (("POLICY", settings.policy), ("PARAPHRASER", settings.paraphraser)):
        known = named in ("", EMBEDDED, SCRIPTED, *settings.upstreams)
        if known or Path(named).is_dir() or is_hub_name(named):
            continue
        upstreams = ", ".join(settings.upstreams) or "none; add it to QGUIDE_UPSTREAMS"
        raise ConfigError(
            f"QGUIDE_{setting} is {named!r}, which is no upstream ({upstreams}), no folder and no name on the Hugging "
            f"Face hub; name one of them, {EMBEDDED!r} or {SCRIPTED!r}"
        )


def check_thresholds(settings: Settings, q_models: Iterable[ServedQModel]) -> None:
    """Check that each threshold belongs to a Q model, and each escalation to an upstream."""
    served = list(q_models)
    for name, threshold in settings.thresholds.items():
        named = [one for one in served if name in (one.id, one.name)]
        if not named and settings.models_dir is None:
            known = sorted({name for one in served for name in (one.id, one.name)})
            raise ConfigError(
                f"QGUIDE_THRESHOLDS names {name!r}, which is not a Q model; name an entry of QGUIDE_Q_MODELS: "
                f"{', '.join(known)}"
            )
        if ranking := [one for one in named if one.ranks]:
            raise ConfigError(
                f"QGUIDE_THRESHOLDS names {name!r}, {ranking[0].kind} that ranks the candidates of one step, so no "
                f"value can be compared with a threshold; {ranking[0].comparable}"
            )
        if threshold.policy and threshold.policy not in settings.upstreams:
            upstreams = ", ".join(settings.upstreams) or "none"
            raise ConfigError(
                f"the threshold of {name!r} escalates to {threshold.policy!r}, which is no upstream ({upstreams}); "
                "name an entry of QGUIDE_UPSTREAMS"
            )


_log = structlog.get_logger(__name__)


def require_licence(manifest: Manifest | None, name: str, *, unlicensed: bool) -> None:
    """Refuse a Q model that was judged and has no licence; log it of one that was not judged."""
    if manifest is None or not manifest.remark:
        return
    if manifest.licence is not None and not unlicensed:
        raise CheckpointError(
            f"{name} {manifest.remark}; train on more data, or serve it all the same with --unlicensed "
            "(QGUIDE_UNLICENSED; `unlicensed` of POST /v1/models/load)"
        )
    _log.warning("unlicensed Q model", q_model=name, reason=manifest.remark)
