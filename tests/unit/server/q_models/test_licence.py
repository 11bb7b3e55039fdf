from pathlib import Path

import pytest
from structlog.testing import capture_logs

from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.manifest import Licence, Manifest
from qguide.server.q_models.checks import require_licence

NONE = Licence(granted=False, reason="its choice is not shown to be above the agent's own")


def manifest(licence: Licence | None) -> Manifest:
    return Manifest(kind="features", name="shop", licence=licence)


def test_a_q_model_without_a_licence_is_refused_with_the_reason_and_the_way_out() -> None:
    with pytest.raises(
        CheckpointError, match=r"^shop .*licence: .* --unlicensed \(QGUIDE_UNLICENSED; `unlicensed`"
    ) as refused:
        require_licence(manifest(NONE), "shop", unlicensed=False)

    assert "--unlicensed" in str(refused.value)


def test_a_licensed_q_model_is_served_and_an_unjudged_one_with_a_remark() -> None:
    unjudged = manifest(None).model_copy(update={"unjudged": "no task was held back"})
    with capture_logs() as logs:
        require_licence(manifest(Licence(granted=True, reason="it is above")), "shop", unlicensed=False)
        require_licence(unjudged, "shop", unlicensed=False)

    assert [line["reason"] for line in logs] == ["was not judged: no task was held back"]


def test_the_operator_may_insist() -> None:
    require_licence(manifest(NONE), "shop", unlicensed=True)


def test_the_embedded_q_model_loads_as_before() -> None:
    from qguide.qnet.models.loading import embedded_path
    from qguide.qnet.models.manifest import read_manifest

    require_licence(read_manifest(Path(embedded_path("qnet"))), "embedded", unlicensed=False)
