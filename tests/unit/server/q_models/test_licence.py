import pytest
from structlog.testing import capture_logs

from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.loading import embedded_path
from qguide.qnet.models.manifest import Licence, Manifest, read_manifest
from qguide.server.q_models.build import require_licence

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


def test_the_q_model_that_ships_is_licensed_on_tasks_of_both_kinds_and_has_a_prior() -> None:
    shipped = read_manifest(embedded_path("qnet"))
    with capture_logs() as logs:
        require_licence(shipped, "embedded", unlicensed=False)

    assert logs == []
    assert shipped is not None
    assert shipped.licence is not None
    assert [one.tasks for one in shipped.licence.judged_by] == [200, 200]
    assert shipped.prior is not None
    assert shipped.prior.tau in {point.tau for point in shipped.prior.curve}
