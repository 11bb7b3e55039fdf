"""Checks of the settings against the Q models: thresholds, and licences."""

import structlog

from qguide.qnet.errors import CheckpointError, ConfigError
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.scoring.rules import RuleName, compares_draws, split_rules
from qguide.server.q_models.aliases import plain_name
from qguide.server.q_models.judge import is_judge
from qguide.server.settings.settings import Settings


def check_thresholds(settings: Settings) -> None:
    """Check that each threshold belongs to a Q model, and each escalation to an upstream."""
    known = {name for q in settings.served_q_models for name in (q, plain_name(q))}
    for name, threshold in settings.thresholds.items():
        if name not in known and settings.models_dir is None:
            raise ConfigError(
                f"QGUIDE_THRESHOLDS names {name!r}, which is not a Q model; name an entry of "
                f"QGUIDE_Q_MODELS: {', '.join(sorted(known))}"
            )
        if _ranks_by_rule(name, settings):
            raise ConfigError(
                f"QGUIDE_THRESHOLDS names {name!r}, whose rules compare the candidates of one step "
                "alone, so there is no Q to compare with a threshold; name another Q model"
            )
        if _ranks(name, settings):
            raise ConfigError(
                f"QGUIDE_THRESHOLDS names {name!r}, a judge that ranks the candidates of a step, "
                "whose values cannot be compared with a threshold; use the mode 'score'"
            )
        if threshold.policy and threshold.policy not in settings.upstreams:
            served = ", ".join(settings.upstreams) or "none"
            raise ConfigError(
                f"the threshold of {name!r} escalates to {threshold.policy!r}, which is no "
                f"upstream ({served}); name an entry of QGUIDE_UPSTREAMS"
            )


def _sources(name: str, settings: Settings) -> list[tuple[tuple[RuleName, ...], str]]:
    """Rules and source of each Q model with that name."""
    return [
        split_rules(source)
        for q, source in settings.served_q_models.items()
        if name in (q, plain_name(q))
    ]


def _ranks_by_rule(name: str, settings: Settings) -> bool:
    return any(not behind or compares_draws(rules) for rules, behind in _sources(name, settings))


def _ranks(name: str, settings: Settings) -> bool:
    judge = settings.judges.get(name) or settings.judges.get(plain_name(name))
    judged = any(is_judge(behind) for _, behind in _sources(name, settings))
    return judged and judge is not None and judge.mode == "rank"


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
