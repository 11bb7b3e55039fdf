"""Refusal of Q models that are not above the agent's own choice, unless the operator insists."""

import structlog

from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.manifest import Manifest

_log = structlog.get_logger(__name__)


def require_licence(manifest: Manifest | None, name: str, *, unlicensed: bool) -> None:
    """Refuse a Q model that was judged and has no licence.

    One that nothing has judged is served: its manifest says nothing of a licence.
    """
    licence = manifest.licence if manifest else None
    if licence is None or licence.granted:
        return
    if not unlicensed:
        raise CheckpointError(
            f"{name} has no licence: {licence.reason}; train on more data, or "
            "serve it all the same with --unlicensed (QGUIDE_UNLICENSED; `unlicensed` of "
            "POST /v1/models/load)"
        )
    _log.warning("unlicensed Q model", q_model=name, reason=licence.reason)
